-- Accept a request once. KEYS after the queue's own: the owner's jobs by arrival, the ms until which the owner's rate
-- is used up, the owner's jobs that may not be answered yet by deadline, the idempotency key.
-- ARGV: policy, id, job, owner, priority, created_at, deadline, fingerprint ('' without a key), affinity, tokens of
-- the prompt, tokens of the answer at most, cache_key, reuse ('' | answer | share), image...
-- Returns what happened, and the id of the job that stands for the request or the ms after which to try again.
local id, priority, deadline, fingerprint = ARGV[2], ARGV[5], tonumber(ARGV[7]), ARGV[8]
local affinity, prompt, longest = ARGV[9], tonumber(ARGV[10]), tonumber(ARGV[11])
local cache_key, reuse, FIRST_IMAGE = ARGV[12], ARGV[13], 14
local OWNED, RATE, OPEN, ONCE = KEYS[10], KEYS[11], KEYS[12], KEYS[13]
local MINUTE = 60000

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

-- The owner's allowance as one number: each job moves it on by its share of a minute, and it may be a minute ahead.
local function used_until()
  return math.max(tonumber(redis.call('GET', RATE) or 0), NOW) + MINUTE / POLICY.owner_rate
end

local function num_open()
  for _, other in ipairs(redis.call('ZRANGE', OPEN, 0, -1)) do
    local status = get(other, 'status')
    if not status or status == 'ended' then redis.call('ZREM', OPEN, other) end
  end
  return redis.call('ZCARD', OPEN)
end

local function refusal_of_owner()
  if POLICY.owner_open > 0 and num_open() >= POLICY.owner_open then return {'open', math.ceil(pace_ms() or 0)} end
  local early = POLICY.owner_rate > 0 and used_until() - MINUTE - NOW or 0
  if early > 0 then return {'rate', math.ceil(early)} end
end

local function charge()
  if POLICY.owner_rate > 0 then
    local used = used_until()
    redis.call('SET', RATE, string.format('%.3f', used), 'PX', math.ceil(used - NOW))
  end
  if POLICY.owner_open > 0 then redis.call('ZADD', OPEN, deadline, id) end
end

local function remember()
  local seq = redis.call('HINCRBY', STATE, 'seq', 1)
  set(id, 'job', ARGV[3], 'owner', ARGV[4], 'priority', priority, 'created_at', ARGV[6], 'deadline', deadline,
    'seq', seq, 'images', #ARGV - FIRST_IMAGE + 1, 'attempt', 0, 'released', 0, 'affinity', affinity,
    'cache_key', cache_key, 'reuse', reuse)
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

-- The answer was given before: the job is born with it.
local function answered()
  if reuse == '' or redis.call('EXISTS', answer_key(cache_key)) == 0 then return end
  remember()
  end_as_before(id)
  keep(POLICY.result_ttl, OWNED, STATE)
  return {'hit', id}
end

-- The same is being answered for somebody else, who has not much less time than we have.
local function joined()
  local leader = reuse == 'share' and redis.call('GET', flight_key(cache_key))
  local theirs = leader and tonumber(get(leader, 'deadline'))
  if not theirs or theirs - NOW < (deadline - NOW) / 2 then return end
  redis.call('SADD', clients_key(leader), id)
  return {'joined', leader}
end

local function store_images()
  for i = FIRST_IMAGE, #ARGV do redis.call('RPUSH', images_key(id), ARGV[i]) end
end

local function open_flight(ttl)
  redis.call('SET', flight_key(cache_key), id, 'PX', ttl)
  redis.call('SADD', clients_key(id), id)
  keep(ttl, clients_key(id))
end

local known = earlier()
if known then return known end
sweep()
local found = answered() or joined() or refusal_of_owner() or refusal()
if found then return found end
remember()
plan()
charge()
store_images()
enqueue(id)
local ttl = math.max(deadline - NOW, 1) + POLICY.result_ttl
keep_job(id, ttl)
keep(ttl, OWNED, OPEN)
if reuse == 'share' then open_flight(ttl) end
return {'accepted', id}
