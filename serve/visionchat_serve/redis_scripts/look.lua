-- How long may a reader of the results wait before it looks again? nil: no such job, 0: it has ended.
-- Ends a job that nobody holds at its deadline. ARGV: policy, id, wait
local id = ARGV[2]
local status, deadline = get(id, 'status', 'deadline')
if not status then return false end
if status == 'ended' then return 0 end
if is_held(id) then return tonumber(ARGV[3]) end
local left = tonumber(deadline) - NOW
if left > 0 then return math.min(left, tonumber(ARGV[3])) end
end_job(id, POLICY.timed_out)
return 0
