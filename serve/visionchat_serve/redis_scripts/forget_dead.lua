-- Take a job, or all without an id, off the dead list, with its pictures; how many. ARGV: policy, id
local ids = ARGV[2] == '' and redis.call('ZRANGE', DEAD, 0, -1) or {ARGV[2]}
local gone = 0
for _, id in ipairs(ids) do
  if redis.call('ZREM', DEAD, id) == 1 then
    redis.call('UNLINK', images_key(id))
    gone = gone + 1
  end
end
return gone
