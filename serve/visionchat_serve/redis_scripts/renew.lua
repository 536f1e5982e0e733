-- Extend a lease. ARGV: group, result_ttl, consumer, entry, attempt, lease
local state = lease_state(ARGV[5])
if state == 'lost' then return state end
-- JUSTID sets the idle time to 0 and counts no delivery.
local claimed = redis.pcall('XCLAIM', JOBS, GROUP, ARGV[3], 0, ARGV[4], 'JUSTID')
if claimed.err or #claimed == 0 then return 'lost' end -- the group is gone or was made anew, the entry is free
keep(tonumber(ARGV[6]) + RESULT_TTL, JOB, EVENTS, IMAGES)
return state
