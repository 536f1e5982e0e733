-- End a job. ARGV: policy, id, attempt, finish, whether the time it took says how fast a replica is, tokens written
local id = ARGV[2]

-- Means that follow the last ten or so answers: ms until the first text and tokens of the prompt, ms from then on and
-- tokens written.
local function learn(written)
  local leased_at, first_at, chunks, prompt = get(id, 'leased_at', 'first_at', 'next', 'prompt')
  if tonumber(chunks) == 0 then first_at = NOW end
  local values = {reading_ms = first_at - leased_at, prompt = prompt, writing_ms = NOW - first_at, written = written}
  local weight = math.max(1 / redis.call('HINCRBY', STATE, 'seen', 1), 0.1)
  for name, value in pairs(values) do
    local mean = redis.call('HGET', STATE, name) or 0
    redis.call('HSET', STATE, name, string.format('%.6f', mean + weight * (value - mean)))
  end
  keep(MEASURE_TTL, STATE)
end

if lease_state(id, ARGV[3]) == 'lost' then
  return get(id, 'ended_by') == ARGV[3] and 1 or 0 -- told twice after a lost reply
end
if ARGV[5] == '1' then learn(ARGV[6]) end
end_job(id, ARGV[4])
set(id, 'ended_by', ARGV[3])
return 1
