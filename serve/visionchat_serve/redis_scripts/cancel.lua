-- Stop a job: at once if nobody holds it, else by telling its replica. ARGV: group, result_ttl, lease, finish
local status, entry, attempt = unpack(redis.call('HMGET', JOB, 'status', 'entry', 'attempt'))
if not status or status == 'ended' then return 0 end
if is_held(status, entry, ARGV[3]) then
  redis.call('HSET', JOB, 'cancelled', 1)
else
  end_job(entry, attempt, ARGV[4])
end
return 1
