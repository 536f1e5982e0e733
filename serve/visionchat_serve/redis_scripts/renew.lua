-- Extend a lease. ARGV: group, result_ttl, consumer, entry, attempt, lease
local state = lease_state(ARGV[5])
if state == 'lost' then return state end
-- JUSTID sets the idle time to 0 and counts no delivery. Nothing to claim: the group was made anew.
if #redis.call('XCLAIM', JOBS, GROUP, ARGV[3], 0, ARGV[4], 'JUSTID') == 0 then return 'lost' end
keep(tonumber(ARGV[6]) + RESULT_TTL, JOB, EVENTS, IMAGES)
return state
