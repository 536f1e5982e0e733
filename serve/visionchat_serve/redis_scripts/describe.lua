-- One job's state: nil, or owner, created_at, status, attempt, position, finish, ended_at. ARGV: policy, id
local id = ARGV[2]
sweep()
local owner, created, status, attempt, finish, ended = get(id, 'owner', 'created_at', 'status', 'attempt', 'finish', 'ended_at')
if not status then return false end

-- Jobs that are claimed before it.
local function position()
  local ahead = 0
  -- Expired leases are the first in LEASED.
  for _, place in ipairs({{LEASED, redis.call('ZCOUNT', LEASED, '-inf', NOW)}, {INTERACTIVE}, {BATCH}, {DELAYED}}) do
    local rank = redis.call('ZRANK', place[1], id)
    if rank then return ahead + rank end
    ahead = ahead + (place[2] or redis.call('ZCARD', place[1]))
  end
end

if status == 'leased' and not is_held(id) then status = 'queued' end
return {owner, created, status, attempt, status == 'queued' and position(), finish, ended}
