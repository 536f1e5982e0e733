-- End a job. KEYS after the queue's own: the cache keys of kept answers by the ms until which they are good, their
-- sizes in bytes ('' is the sum). ARGV: policy, id, attempt, finish, whether it is a good end
local id, attempt, good = ARGV[2], ARGV[3], ARGV[5] == '1'
local ANSWERS, SIZES = KEYS[10], KEYS[11]
local ENTRY_BYTES = 100 -- about what a piece of answer takes beside its text

-- A mean that follows the last ten or so answers.
local function learn(took)
  local mean, seen = unpack(redis.call('HMGET', STATE, 'mean_ms', 'seen'))
  local weight = math.max(1 / ((seen or 0) + 1), 0.1)
  mean = (mean or 0) + weight * (took - (mean or 0))
  redis.call('HSET', STATE, 'mean_ms', string.format('%.3f', mean), 'seen', (seen or 0) + 1)
  keep(MEASURE_TTL, STATE)
end

local function forget(key)
  redis.call('ZREM', ANSWERS, key)
  redis.call('HINCRBY', SIZES, '', 0 - (redis.call('HGET', SIZES, key) or 0))
  redis.call('HDEL', SIZES, key)
  redis.call('UNLINK', answer_key(key))
end

-- nil if an attempt before this one has left something in the stream.
local function size_of_answer()
  local size = 0
  for _, entry in ipairs(redis.call('XRANGE', events_key(id), '-', '+')) do
    if entry[2][2] ~= attempt then return end
    size = size + ENTRY_BYTES
    for _, value in ipairs(entry[2]) do size = size + #value end
  end
  return size
end

-- Let the same request be answered by this answer.
local function keep_answer(key)
  local size = size_of_answer()
  if not size or size > POLICY.cache_bytes then return end
  forget(key)
  for _, old in ipairs(redis.call('ZRANGEBYSCORE', ANSWERS, '-inf', NOW)) do forget(old) end
  redis.call('COPY', events_key(id), answer_key(key))
  redis.call('PEXPIRE', answer_key(key), POLICY.cache_ttl)
  redis.call('ZADD', ANSWERS, NOW + POLICY.cache_ttl, key)
  redis.call('HSET', SIZES, key, size)
  local total = redis.call('HINCRBY', SIZES, '', size)
  while total > POLICY.cache_bytes do
    forget(redis.call('ZRANGE', ANSWERS, 0, 0)[1])
    total = tonumber(redis.call('HGET', SIZES, ''))
  end
  keep(POLICY.cache_ttl, ANSWERS, SIZES)
end

if lease_state(id, attempt) == 'lost' then
  return get(id, 'ended_by') == attempt and 1 or 0 -- told twice after a lost reply
end
if good then learn(NOW - get(id, 'leased_at')) end
end_job(id, ARGV[4])
set(id, 'ended_by', attempt)
local key = get(id, 'cache_key')
if good and key and key ~= '' then keep_answer(key) end
return 1
