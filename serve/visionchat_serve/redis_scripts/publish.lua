-- Append a piece of answer. ARGV: group, result_ttl, attempt, index, text, more fields...
local state = lease_state(ARGV[3])
if state ~= 'held' then return state end
local index, following = tonumber(ARGV[4]), tonumber(redis.call('HGET', JOB, 'next'))
if index < following then return 'held' end -- a repetition after a lost reply
if index > following then return 'lost' end -- a piece before this one is gone: the answer would be torn
append('attempt', ARGV[3], 'index', ARGV[4], 'text', ARGV[5], unpack(ARGV, 6))
redis.call('HSET', JOB, 'next', index + 1)
return state
