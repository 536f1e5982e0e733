-- Lease one taken entry, or end its job.
-- ARGV: group, result_ttl, consumer, entry, lease, max_attempts, and the ends: cancelled, timed out, used up, no pictures
local consumer, entry = ARGV[3], ARGV[4]
-- Between `take` and here the entry may have gone to somebody else, or its job may have ended.
local ours = redis.pcall('XPENDING', JOBS, GROUP, entry, entry, 1, consumer)
if ours.err or #ours == 0 then return false end
local job, status, cancelled, deadline, attempt, released, images =
  unpack(redis.call('HMGET', JOB, 'job', 'status', 'cancelled', 'deadline', 'attempt', 'released', 'images'))
if not job or status == 'ended' then
  drop_from_queue(entry)
  return false
end

local function verdict(pictures)
  if cancelled then return ARGV[7] end
  if now_ms() >= tonumber(deadline) then return ARGV[8] end
  if attempt - released >= tonumber(ARGV[6]) then return ARGV[9] end
  if #pictures ~= tonumber(images) then return ARGV[10] end
end

local pictures = redis.call('LRANGE', IMAGES, 0, -1)
local finish = verdict(pictures)
if finish then
  end_job(entry, attempt, finish)
  return false
end
attempt = redis.call('HINCRBY', JOB, 'attempt', 1)
redis.call('HSET', JOB, 'status', 'leased', 'next', 0)
keep(tonumber(ARGV[5]) + RESULT_TTL, JOB, EVENTS, IMAGES)
return {job, attempt, pictures}
