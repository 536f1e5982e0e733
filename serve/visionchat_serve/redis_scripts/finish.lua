-- End a job. KEYS after the queue's own: the cache keys of kept answers by the ms until which they are good, their
-- sizes in bytes ('' is the sum). ARGV: policy, id, attempt, finish, whether it is a good end, tokens
-- written
local id, attempt, good = ARGV[2], ARGV[3], ARGV[5] == '1'
local ANSWERS, SIZES = KEYS[10], KEYS[11]
local ENTRY_BYTES = 100 -- about what a piece of answer takes beside its text

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
if good then learn(ARGV[6]) end
end_job(id, ARGV[4])
set(id, 'ended_by', attempt)
local key = get(id, 'cache_key')
if good and key and key ~= '' then keep_answer(key) end
if redis.call('ZCARD', INTERACTIVE) + redis.call('ZCARD', BATCH) > 0 then ring() end -- some may have waited for this end
return 1
