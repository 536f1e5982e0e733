-- Lease up to `count` jobs: first those whose replica was lost, then what waits. ARGV: policy, consumer, count
-- Returns the claims, the ms after which a lease expires or a delay or a reservation is over, and the bell's last ring.
local consumer, count, claims = ARGV[2], tonumber(ARGV[3]), {}
local LOOK_AHEAD = 32 -- jobs that are left for other replicas and passed over, at most
local reserved_until = math.huge

local function lease(id)
  local job, images, affinity, cache_key = get(id, 'job', 'images', 'affinity', 'cache_key')
  if not job then return dequeue(id) end -- forgotten behind our back
  if is_known(id) then return end_as_before(id) end
  local pictures = redis.call('LRANGE', images_key(id), 0, -1)
  if #pictures ~= tonumber(images) then return end_job(id, POLICY.pictures_lost) end
  dequeue(id)
  redis.call('ZADD', LEASED, NOW + POLICY.lease, id)
  local attempt = redis.call('HINCRBY', job_key(id), 'attempt', 1)
  set(id, 'status', 'leased', 'consumer', consumer, 'leased_at', NOW, 'next', 0)
  keep_job(id, POLICY.lease + POLICY.result_ttl)
  if cache_key and cache_key ~= '' then
    redis.call('SET', leader_key(cache_key), id, 'PX', POLICY.lease + POLICY.result_ttl)
  end
  if affinity and affinity ~= '' then
    redis.call('SET', home_key(affinity), consumer, 'PX', POLICY.lease + POLICY.result_ttl)
  end
  claims[#claims + 1] = {job, attempt, pictures}
end

-- Keep a job that no replica survived, with its pictures, for people to look at and to replay.
local function bury(id)
  mark_ended(id, POLICY.used_up, POLICY.dead_ttl)
  redis.call('PEXPIRE', images_key(id), POLICY.dead_ttl)
  redis.call('ZREMRANGEBYSCORE', DEAD, '-inf', NOW - POLICY.dead_ttl)
  redis.call('ZADD', DEAD, NOW, id)
  keep(POLICY.dead_ttl, DEAD)
  for _, old in ipairs(redis.call('ZRANGE', DEAD, 0, -POLICY.max_dead - 1)) do
    redis.call('ZREM', DEAD, old)
    redis.call('UNLINK', images_key(old))
  end
end

local function delay(id, lost)
  local pause = math.min(POLICY.retry_delay * 2 ^ (lost - 2), POLICY.max_retry_delay)
  local deadline = get(id, 'deadline')
  dequeue(id)
  set(id, 'status', 'queued')
  redis.call('ZADD', DELAYED, NOW + pause, id)
  redis.call('ZADD', DEADLINES, deadline, id)
end

-- One lost replica says nothing against a job: again at once. After more, it may be the job that kills them.
local function retry(id)
  local cancelled, deadline, attempt, released = get(id, 'cancelled', 'deadline', 'attempt', 'released')
  if not deadline then return dequeue(id) end
  local lost = attempt - released
  if cancelled then return end_job(id, POLICY.cancelled) end
  if tonumber(deadline) <= NOW then return end_job(id, POLICY.timed_out) end
  if lost >= POLICY.max_attempts then return bury(id) end
  if lost > 1 then return delay(id, lost) end
  lease(id)
end

local function held_by(replica)
  local held = 0
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', LEASED, '(' .. NOW, '+inf')) do
    if get(id, 'consumer') == replica then held = held + 1 end
  end
  return held
end

-- Is another replica better for this job, and as free as this one? Then it comes for it, or is too late.
local function is_reserved(id)
  local affinity, since = get(id, 'affinity', 'queued_at')
  local last = (since or 0) + POLICY.affinity_wait
  if not affinity or affinity == '' or last <= NOW then return false end
  local home = redis.call('GET', home_key(affinity))
  if not home or home == consumer then return false end
  local held = held_by(home)
  if held >= places_of(home) or held > held_by(consumer) then return false end
  reserved_until = math.min(reserved_until, last)
  return true
end

-- Is the same being answered just now? Its answer will do.
local function is_doubled(id)
  local key, reuse = get(id, 'cache_key', 'reuse')
  if not key or key == '' or not reuse or reuse == '' then return false end
  local leader = redis.call('GET', leader_key(key))
  return leader and leader ~= id and is_held(leader)
end

local function first_free(key)
  for _, id in ipairs(redis.call('ZRANGE', key, 0, LOOK_AHEAD)) do
    if not is_doubled(id) and not is_reserved(id) then return id end
  end
end

-- Interactive before batch, but a waiting batch job goes first after so many interactive ones in a row.
local function next_waiting()
  local interactive, batch = first_free(INTERACTIVE), first_free(BATCH)
  local streak = tonumber(redis.call('HGET', STATE, 'streak') or 0)
  if interactive and not (batch and streak >= POLICY.batch_after) then
    redis.call('HINCRBY', STATE, 'streak', 1)
    return interactive
  end
  if batch then redis.call('HSET', STATE, 'streak', 0) end
  return batch
end

local function first_score(key)
  return tonumber(redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]) or math.huge
end

sweep()
for _, id in ipairs(redis.call('ZRANGEBYSCORE', LEASED, '-inf', NOW)) do
  if #claims < count then retry(id) end
end
while #claims < count do
  local id = next_waiting()
  if not id then break end
  lease(id)
end

local rung = redis.call('XREVRANGE', BELL, '+', '-', 'COUNT', 1)[1]
local pause = math.min(first_score(LEASED), first_score(DELAYED), reserved_until) - NOW
return {claims, math.max(1, math.min(pause, POLICY.lease)), rung and rung[1] or '0'}
