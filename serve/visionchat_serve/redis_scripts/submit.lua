-- Accept a request once. KEYS after the queue's own: the owner's jobs, the idempotency key.
-- ARGV: policy, id, job, owner, priority, created_at, deadline, fingerprint ('' without a key), affinity,
-- tokens of the prompt, tokens of the answer at most, image...
-- Returns what happened, and the id of the job that stands for the request or the ms after which to try again.
local id, priority, deadline, fingerprint = ARGV[2], ARGV[5], tonumber(ARGV[7]), ARGV[8]
local affinity, prompt, longest, FIRST_IMAGE = ARGV[9], tonumber(ARGV[10]), tonumber(ARGV[11]), 12
local OWNED, ONCE = KEYS[10], KEYS[11]

local function earlier()
  if redis.call('EXISTS', job_key(id)) == 1 then return {'known', id} end
  if fingerprint == '' then return end
  local first, body = unpack(redis.call('HMGET', ONCE, 'job', 'fingerprint'))
  if first and body ~= fingerprint then return {'reused', first} end
  if first and redis.call('EXISTS', job_key(first)) == 1 then return {'known', first} end
end

-- Jobs that are answered before one that comes now.
local function ahead()
  local others = priority == 'batch' and redis.call('ZCARD', BATCH) or 0
  return redis.call('ZCARD', INTERACTIVE) + redis.call('ZCARD', LEASED) + redis.call('ZCARD', DELAYED) + others
end

local function refusal()
  local pace = pace_ms() or 0
  if num_unanswered() >= POLICY.max_waiting then return {'full', math.ceil(pace)} end
  local wait = ahead() * pace
  if wait > POLICY.max_wait then return {'slow', math.ceil(wait - POLICY.max_wait + pace)} end
end

local function remember()
  local seq = redis.call('HINCRBY', STATE, 'seq', 1)
  set(id, 'job', ARGV[3], 'owner', ARGV[4], 'priority', priority, 'created_at', ARGV[6], 'deadline', deadline,
    'seq', seq, 'images', #ARGV - FIRST_IMAGE + 1, 'attempt', 0, 'released', 0, 'affinity', affinity)
  for i = FIRST_IMAGE, #ARGV do redis.call('RPUSH', images_key(id), ARGV[i]) end
  redis.call('ZADD', OWNED, seq, id)
  redis.call('ZREMRANGEBYRANK', OWNED, 0, -POLICY.max_listed - 1)
  if fingerprint ~= '' then
    redis.call('HSET', ONCE, 'job', id, 'fingerprint', fingerprint)
    redis.call('PEXPIRE', ONCE, POLICY.idempotency_ttl)
  end
end

-- Count what there is to do; an answer is expected to be as long as the last ones.
local function plan()
  local usual = redis.call('HGET', STATE, 'written')
  local expected = usual and math.min(longest, math.floor(usual + 0.5)) or longest
  set(id, 'prompt', prompt, 'expected', expected)
  count_work(prompt, expected)
end

local known = earlier()
if known then return known end
sweep()
local refused = refusal()
if refused then return refused end
remember()
plan()
enqueue(id)
local ttl = math.max(deadline - NOW, 0) + POLICY.result_ttl
keep_job(id, ttl)
keep(ttl, OWNED)
return {'accepted', id}
