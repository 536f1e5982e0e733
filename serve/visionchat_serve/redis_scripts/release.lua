-- Give a job back: pending, with an idle time that makes it the next to be taken. ARGV: group, _, entry, attempt, lease, released
if lease_state(ARGV[4]) == 'lost' then return 0 end
redis.pcall('XCLAIM', JOBS, GROUP, ARGV[6], 0, ARGV[3], 'IDLE', ARGV[5], 'JUSTID') -- without a group it is free
redis.call('HSET', JOB, 'status', 'queued')
redis.call('HINCRBY', JOB, 'released', 1)
return 1
