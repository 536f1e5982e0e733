-- Give a job back, to wait at its old place. ARGV: policy, id, attempt
local id = ARGV[2]
local state = lease_state(id, ARGV[3])
if state == 'lost' then return 0 end
redis.call('HINCRBY', job_key(id), 'released', 1)
if state == 'cancelled' then end_job(id, POLICY.cancelled) else enqueue(id) end
return 1
