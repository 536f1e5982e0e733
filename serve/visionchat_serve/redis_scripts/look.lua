-- How long may a reader of the results wait before it looks again? nil: no such job, 0: it has ended.
-- Ends a job that nobody holds at its deadline. ARGV: group, result_ttl, lease, wait, finish
local status, entry, attempt, deadline = unpack(redis.call('HMGET', JOB, 'status', 'entry', 'attempt', 'deadline'))
if not status then return false end
if status == 'ended' then return 0 end
if is_held(status, entry, ARGV[3]) then return tonumber(ARGV[4]) end
local left = tonumber(deadline) - now_ms()
if left > 0 then return math.min(left, tonumber(ARGV[4])) end
end_job(entry, attempt, ARGV[5])
return 0
