-- One job's state: nil, or owner, created_at, status, attempt, position, finish, ended_at. ARGV: policy, id
local id = ARGV[2]
sweep()
local owner, created, status, attempt, finish, ended = get(id, 'owner', 'created_at', 'status', 'attempt', 'finish', 'ended_at')
if not status then return false end

-- Jobs that are claimed before it.
local function position()
  local lost, interactive = redis.call('ZCOUNT', LEASED, '-inf', NOW), redis.call('ZCARD', INTERACTIVE)
  local rank = redis.call('ZRANK', LEASED, id) -- expired leases are the first there
  if rank then return rank end
  rank = redis.call('ZRANK', INTERACTIVE, id)
  if rank then return lost + rank end
  return lost + interactive + (redis.call('ZRANK', BATCH, id) or redis.call('ZCARD', BATCH)) -- last: a delayed job
end

if status == 'leased' and not is_held(id) then status = 'queued' end
return {owner, created, status, attempt, status == 'queued' and position(), finish, ended}
