-- Accept a job once. ARGV: group, result_ttl, id, job, deadline, max_waiting, image...
if redis.call('EXISTS', JOB) == 1 then return 'known' end
if redis.call('XLEN', JOBS) >= tonumber(ARGV[6]) then return 'full' end

local entry = redis.call('XADD', JOBS, '*', 'job', ARGV[3])
redis.call('HSET', JOB, 'job', ARGV[4], 'deadline', ARGV[5], 'status', 'queued', 'entry', entry,
  'images', #ARGV - 6, 'attempt', 0, 'released', 0)
for i = 7, #ARGV do redis.call('RPUSH', IMAGES, ARGV[i]) end
keep(math.max(tonumber(ARGV[5]) - now_ms(), 0) + RESULT_TTL, JOB, IMAGES)
return 'accepted'
