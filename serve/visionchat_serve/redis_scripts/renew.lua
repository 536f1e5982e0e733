-- Extend a lease. ARGV: policy, id, attempt
local state = lease_state(ARGV[2], ARGV[3])
if state == 'lost' then return state end
redis.call('ZADD', LEASED, NOW + POLICY.lease, ARGV[2])
keep_job(ARGV[2], POLICY.lease + POLICY.result_ttl)
return state
