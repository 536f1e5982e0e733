-- Append a piece of answer. ARGV: policy, id, attempt, index, text, more fields...
local id = ARGV[2]
local state = lease_state(id, ARGV[3])
if state ~= 'held' then return state end
local index, following = tonumber(ARGV[4]), tonumber(get(id, 'next'))
if index < following then return 'held' end -- a repetition after a lost reply
if index > following then return 'lost' end -- a piece before this one is gone: the answer would be torn
append(id, 'attempt', ARGV[3], 'index', ARGV[4], 'text', ARGV[5], unpack(ARGV, 6))
set(id, 'next', index + 1)
if index == 0 then set(id, 'first_at', NOW) end
return state
