-- End a job. ARGV: policy, id, attempt, finish, whether the time it took says how fast a replica is
local id = ARGV[2]

-- A mean that follows the last ten or so answers.
local function learn(took)
  local mean, seen = unpack(redis.call('HMGET', STATE, 'mean_ms', 'seen'))
  local weight = math.max(1 / ((seen or 0) + 1), 0.1)
  mean = (mean or 0) + weight * (took - (mean or 0))
  redis.call('HSET', STATE, 'mean_ms', string.format('%.3f', mean), 'seen', (seen or 0) + 1)
  keep(MEASURE_TTL, STATE)
end

if lease_state(id, ARGV[3]) == 'lost' then
  return get(id, 'ended_by') == ARGV[3] and 1 or 0 -- told twice after a lost reply
end
if ARGV[5] == '1' then learn(NOW - get(id, 'leased_at')) end
end_job(id, ARGV[4])
set(id, 'ended_by', ARGV[3])
return 1
