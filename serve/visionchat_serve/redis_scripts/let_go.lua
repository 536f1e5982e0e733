-- A client does not wait any more; without any the job is stopped. ARGV: policy, id, client
local id = ARGV[2]
sweep()
redis.call('SREM', clients_key(id), ARGV[3])
if redis.call('EXISTS', clients_key(id)) == 1 then return 0 end
return stop(id)
