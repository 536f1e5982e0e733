-- Put before every script. What the queue is in Redis, and the steps that several scripts share.
-- The clock is always Redis' own: gateways and replicas may disagree about the time.
--
-- A job that is not answered is in one of these sorted sets: INTERACTIVE or BATCH (waiting, by arrival number),
-- LEASED (by the ms at which its lease expires), DELAYED (by the ms at which it may be tried again). While nobody
-- holds it, it is in DEADLINES too. STATE: seq, streak, mean_ms, seen. BELL: a stream that moves when a job comes.
--
-- job hash: job (JSON), owner, created_at, priority, seq (arrival number), deadline (epoch ms), images (how many),
--   affinity, queued_at, status (queued | leased | ended), attempt (number of the last claim: the fence), released (claims given back),
--   consumer, leased_at, next (index of the next chunk of this attempt), cancelled (1 when asked to stop),
--   finish, ended_at, ended_by (attempt whose replica ended it)
--
-- ARGV[1] is the broker's policy as JSON (see `redis_policy`). A job's keys follow from POLICY.job and its id; they
-- are in the slot of the KEYS, by their hash tag.

local INTERACTIVE, BATCH, LEASED, DELAYED, DEADLINES, DEAD, STATE, BELL, REPORTS = unpack(KEYS)
local POLICY = cjson.decode(ARGV[1])
local EVENTS_CAP = 20000 -- an answer has far fewer pieces; this only bounds the memory of a replica gone mad
local MEASURE_TTL = 7 * 24 * 3600 * 1000 -- a measured speed is remembered over a quiet week

local time = redis.call('TIME')
local NOW = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)

local function job_key(id) return POLICY.job .. id end
local function events_key(id) return POLICY.job .. id .. ':events' end
local function images_key(id) return POLICY.job .. id .. ':images' end

local function home_key(affinity) return POLICY.home .. affinity end

local function get(id, ...) return unpack(redis.call('HMGET', job_key(id), ...)) end
local function set(id, ...) redis.call('HSET', job_key(id), ...) end

-- Let keys live for at least `ttl` more ms, never shorter than they would.
local function keep(ttl, ...)
  for _, key in ipairs({...}) do
    if redis.call('PTTL', key) < ttl then redis.call('PEXPIRE', key, ttl) end
  end
end

-- The queue's own keys live at least as long as any job that is in them.
local function keep_job(id, ttl)
  keep(ttl, job_key(id), events_key(id), images_key(id), unpack(KEYS, 1, 9))
end

local function append(id, ...)
  redis.call('XADD', events_key(id), 'MAXLEN', '~', EVENTS_CAP, '*', ...)
  keep(redis.call('PTTL', job_key(id)), events_key(id))
end

-- Wake the replicas that wait for a job.
local function ring()
  redis.call('XADD', BELL, 'MAXLEN', 1, '*', 'job', 1)
  keep(POLICY.result_ttl, BELL)
end

local function dequeue(id)
  for _, key in ipairs({INTERACTIVE, BATCH, LEASED, DELAYED, DEADLINES}) do redis.call('ZREM', key, id) end
end

-- Let a job wait at the place of its arrival, also when it comes back.
local function enqueue(id)
  local priority, seq, deadline = get(id, 'priority', 'seq', 'deadline')
  dequeue(id)
  if not seq then return end -- forgotten behind our back
  set(id, 'status', 'queued', 'queued_at', NOW)
  redis.call('ZADD', priority == 'batch' and BATCH or INTERACTIVE, seq, id)
  redis.call('ZADD', DEADLINES, deadline, id)
  ring()
end

local function mark_ended(id, finish, ttl)
  append(id, 'attempt', get(id, 'attempt'), 'finish', finish)
  set(id, 'status', 'ended', 'finish', finish, 'ended_at', NOW)
  dequeue(id)
  redis.call('PEXPIRE', job_key(id), ttl)
  redis.call('PEXPIRE', events_key(id), ttl)
end

local function end_job(id, finish)
  mark_ended(id, finish, POLICY.result_ttl)
  redis.call('UNLINK', images_key(id))
end

-- Does a replica hold the job, with a lease that has not expired?
local function is_held(id)
  return (tonumber(redis.call('ZSCORE', LEASED, id) or 0)) > NOW
end

-- held | cancelled | lost: may the claim with this attempt still write?
local function lease_state(id, attempt)
  local status, current, cancelled = get(id, 'status', 'attempt', 'cancelled')
  if status ~= 'leased' or current ~= attempt then return 'lost' end
  return cancelled and 'cancelled' or 'held'
end

-- Do what time has done: end what waits past its deadline, whether or not anybody claims or reads; let delayed jobs wait.
local function sweep()
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', DEADLINES, '-inf', NOW)) do
    if get(id, 'status') then end_job(id, POLICY.timed_out) else dequeue(id) end
  end
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', DELAYED, '-inf', NOW)) do enqueue(id) end
end

-- How many jobs a replica runs at once; 0 if it is not there.
local function places_of(replica)
  local expires, places = string.match(redis.call('HGET', REPORTS, replica) or '', '^(%d+) (%d+) ')
  return expires and tonumber(expires) > NOW and tonumber(places) or 0
end

-- How many ms pass between two answers of all replicas together; nil until one was measured.
local function pace_ms()
  local mean, slots = tonumber(redis.call('HGET', STATE, 'mean_ms')), 0
  for _, value in ipairs(redis.call('HVALS', REPORTS)) do
    local expires, running = string.match(value, '^(%d+) (%d+) ')
    if tonumber(expires) > NOW then slots = slots + tonumber(running) end
  end
  return mean and mean / math.max(slots, 1)
end
