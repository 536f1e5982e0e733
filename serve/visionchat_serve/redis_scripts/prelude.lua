-- Put before every script. What the queue is in Redis, and the steps that several scripts share.
-- The clock is always Redis' own: gateways and replicas may disagree about the time.
--
-- A job that is not answered is in one of these sorted sets: INTERACTIVE or BATCH (waiting, by arrival number),
-- LEASED (by the ms at which its lease expires), DELAYED (by the ms at which it may be tried again). While nobody
-- holds it, it is in DEADLINES too. STATE: seq, streak, what was measured (seen, reading_ms, prompt, writing_ms,
-- written: see `finish.lua`), tokens to be read and written for all of them (todo_prompt, todo_written). BELL: a stream
-- that moves when a job comes.
--
-- job hash: job (JSON), owner, created_at, priority, seq (arrival number), deadline (epoch ms), images (how many),
--   affinity, prompt, expected (tokens to be read and written), queued_at, status (queued | leased | ended),
--   attempt (number of the last claim: the fence), released (claims given back), consumer, leased_at, first_at, next
--   (index of the next chunk of this attempt), cancelled (1 when asked to stop), finish, ended_at, ended_by (attempt
--   whose replica ended it), cache_key ('' if its answer is not kept), reuse ('' if no other answer will do)
-- A job that several clients wait for: `flight` of its cache_key names it, the set `clients` who they are. `leader` of a
-- cache_key is the job that was leased last with it. A kept answer is a copy of the stream of the job that gave it.
--
-- ARGV[1] is the broker's policy as JSON (see `redis_policy`). A job's keys follow from POLICY.job, POLICY.events … and
-- its id, whatever a client sends as one; they are in the slot of the KEYS, by their hash tag.

local INTERACTIVE, BATCH, LEASED, DELAYED, DEADLINES, DEAD, STATE, BELL, REPORTS = unpack(KEYS)
local POLICY = cjson.decode(ARGV[1])
local EVENTS_CAP = 20000 -- an answer has far fewer pieces; this only bounds the memory of a replica gone mad
local MEASURE_TTL = 7 * 24 * 3600 * 1000 -- a measured speed is remembered over a quiet week

local time = redis.call('TIME')
local NOW = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)

local function job_key(id) return POLICY.job .. id end
local function events_key(id) return POLICY.events .. id end
local function images_key(id) return POLICY.images .. id end

local function home_key(affinity) return POLICY.home .. affinity end
local function clients_key(id) return POLICY.clients .. id end
local function flight_key(key) return POLICY.flight .. key end
local function leader_key(key) return POLICY.leader .. key end
local function answer_key(key) return POLICY.answer .. key end

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

local function num_unanswered()
  local sum = 0
  for _, key in ipairs({INTERACTIVE, BATCH, LEASED, DELAYED}) do sum = sum + redis.call('ZCARD', key) end
  return sum
end

local function count_work(prompt, written)
  redis.call('HINCRBY', STATE, 'todo_prompt', prompt)
  redis.call('HINCRBY', STATE, 'todo_written', written)
end

local function uncount_work(id)
  local prompt, written = get(id, 'prompt', 'expected')
  if prompt then count_work(0 - prompt, 0 - written) end
  -- What a job that was forgotten behind our back has left.
  if num_unanswered() == 0 then redis.call('HSET', STATE, 'todo_prompt', 0, 'todo_written', 0) end
end

-- Nobody more may join a job that has ended or is being stopped.
local function close_flight(id)
  local key = get(id, 'cache_key')
  if key and redis.call('GET', flight_key(key)) == id then redis.call('DEL', flight_key(key)) end
end

-- The end stands in the job's stream.
local function settle(id, finish, ttl)
  set(id, 'status', 'ended', 'finish', finish, 'ended_at', NOW)
  dequeue(id)
  uncount_work(id)
  close_flight(id)
  redis.call('UNLINK', clients_key(id))
  redis.call('PEXPIRE', job_key(id), ttl)
  redis.call('PEXPIRE', events_key(id), ttl)
end

local function mark_ended(id, finish, ttl)
  append(id, 'attempt', get(id, 'attempt'), 'finish', finish)
  settle(id, finish, ttl)
end

-- Has the same been answered before, and will that answer do?
local function is_known(id)
  local key, reuse, attempt = get(id, 'cache_key', 'reuse', 'attempt')
  if not key or key == '' or not reuse or reuse == '' or attempt ~= '0' then return false end
  return redis.call('EXISTS', answer_key(key)) == 1
end

local function end_as_before(id)
  redis.call('COPY', answer_key(get(id, 'cache_key')), events_key(id))
  local _, fields = unpack(redis.call('XREVRANGE', events_key(id), '+', '-', 'COUNT', 1)[1])
  set(id, 'attempt', fields[2])
  settle(id, fields[4], POLICY.result_ttl)
  redis.call('UNLINK', images_key(id))
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

-- At once if nobody holds the job, else by telling its replica. 0: unknown or already ended.
local function stop(id)
  local status = get(id, 'status')
  if not status or status == 'ended' then return 0 end
  close_flight(id)
  if is_held(id) then set(id, 'cancelled', 1) else end_job(id, POLICY.cancelled) end
  return 1
end

-- How many jobs a replica runs at once; 0 if it is not there.
local function places_of(replica)
  local expires, places = string.match(redis.call('HGET', REPORTS, replica) or '', '^(%d+) (%d+) ')
  return expires and tonumber(expires) > NOW and tonumber(places) or 0
end

local function num_places()
  local sum = 0
  for _, replica in ipairs(redis.call('HKEYS', REPORTS)) do sum = sum + places_of(replica) end
  return sum
end

-- How many ms will pass between two answers of all replicas together; nil until one was measured.
local function pace_ms()
  local measured = redis.call('HMGET', STATE, 'reading_ms', 'prompt', 'writing_ms', 'written', 'todo_prompt', 'todo_written')
  for i, value in ipairs(measured) do measured[i] = tonumber(value or 0) end
  local reading, prompt, writing, written, todo_prompt, todo_written = unpack(measured)
  if prompt == 0 then return end
  local jobs, work = num_unanswered(), reading + writing
  if jobs > 0 then
    local to_write = written > 0 and todo_written * writing / written or 0
    work = (todo_prompt * reading / prompt + to_write) / jobs
  end
  return work / math.max(num_places(), 1)
end
