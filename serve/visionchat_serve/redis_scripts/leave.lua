-- Forget a consumer, after what it still holds was moved: deleting it first would lose that.
-- KEYS: jobs, reports. ARGV: group, _, consumer, lease, released
local consumer = ARGV[3]
redis.call('HDEL', KEYS[2], consumer)
local pending = redis.pcall('XPENDING', JOBS, GROUP, '-', '+', 10000, consumer)
if pending.err then return end -- no group
for _, one in ipairs(pending) do
  redis.call('XCLAIM', JOBS, GROUP, ARGV[5], 0, one[1], 'IDLE', ARGV[4], 'JUSTID')
end
if #redis.call('XPENDING', JOBS, GROUP, '-', '+', 1, consumer) == 0 then
  redis.call('XGROUP', 'DELCONSUMER', JOBS, GROUP, consumer)
end
