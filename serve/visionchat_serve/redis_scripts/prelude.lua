-- Put before every script. What a job is in Redis, and the steps that several scripts share.
-- The clock is always Redis' own: gateways and replicas may disagree about the time.
--
-- job hash: job (JSON), status (queued | leased | ended), entry (its id in the jobs stream), images (how many),
--   deadline (epoch ms), attempt (number of the last claim: the fence), released (claims given back),
--   next (index of the next chunk of this attempt), cancelled (1 when asked to stop), ended_by (attempt whose replica ended it)

local JOBS, JOB, EVENTS, IMAGES = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local GROUP, RESULT_TTL = ARGV[1], tonumber(ARGV[2])
local EVENTS_CAP = 20000 -- an answer has far fewer pieces; this only bounds the memory of a replica gone mad

local function now_ms()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

-- Let keys live for at least `ttl` more ms, never shorter than they would.
local function keep(ttl, ...)
  for _, key in ipairs({...}) do
    if redis.call('PTTL', key) < ttl then redis.call('PEXPIRE', key, ttl) end
  end
end

local function append(...)
  redis.call('XADD', EVENTS, 'MAXLEN', '~', EVENTS_CAP, '*', ...)
  keep(redis.call('PTTL', JOB), EVENTS)
end

local function drop_from_queue(entry)
  redis.call('XACK', JOBS, GROUP, entry)
  redis.call('XDEL', JOBS, entry)
  redis.call('UNLINK', IMAGES)
end

local function end_job(entry, attempt, finish)
  append('attempt', attempt, 'finish', finish)
  redis.call('HSET', JOB, 'status', 'ended')
  drop_from_queue(entry)
  redis.call('PEXPIRE', JOB, RESULT_TTL)
  redis.call('PEXPIRE', EVENTS, RESULT_TTL)
end

-- held | cancelled | lost: may the claim with this attempt still write?
local function lease_state(attempt)
  local status, current, cancelled = unpack(redis.call('HMGET', JOB, 'status', 'attempt', 'cancelled'))
  if status ~= 'leased' or current ~= attempt then return 'lost' end
  return cancelled and 'cancelled' or 'held'
end

-- Does a replica hold the job, with a lease that has not expired?
local function is_held(status, entry, lease)
  if status ~= 'leased' then return false end
  local pending = redis.pcall('XPENDING', JOBS, GROUP, entry, entry, 1) -- without a group nobody holds anything
  return not pending.err and pending[1] ~= nil and pending[1][3] < tonumber(lease)
end
