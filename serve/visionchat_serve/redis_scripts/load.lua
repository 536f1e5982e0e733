-- Jobs waiting and jobs held. Not from the group's `lag`, which is nil or wrong after XDEL. ARGV: group, _, lease
local total = redis.call('XLEN', JOBS)
local summary = redis.pcall('XPENDING', JOBS, GROUP)
if summary.err then return {total, 0} end -- no group yet: nobody has ever claimed
local pending = summary[1]
local expired = pending > 0 and #redis.call('XPENDING', JOBS, GROUP, 'IDLE', ARGV[3], '-', '+', pending) or 0
local held = math.min(pending - expired, total)
return {total - held, held}
