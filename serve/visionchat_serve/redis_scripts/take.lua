-- Move up to `count` entries to a consumer: expired leases first, then new ones. ARGV: group, _, consumer, count, lease.
-- XPENDING IDLE walks all pending entries, oldest first, so that no cursor is needed and none can be skipped;
-- they are few, one per answer being written. (XAUTOCLAIM of Redis 6.2 would return nil for deleted entries.)
local consumer, count, lease = ARGV[3], tonumber(ARGV[4]), ARGV[5]
local taken = {}

local function forget_if_idle(owner)
  if owner ~= consumer and #redis.call('XPENDING', JOBS, GROUP, '-', '+', 1, owner) == 0 then
    redis.call('XGROUP', 'DELCONSUMER', JOBS, GROUP, owner) -- comes back by itself if it was only slow
  end
end

for _, pending in ipairs(redis.call('XPENDING', JOBS, GROUP, 'IDLE', lease, '-', '+', count)) do
  local id, owner = pending[1], pending[2]
  local entry = redis.call('XRANGE', JOBS, id, id)[1]
  if entry then
    redis.call('XCLAIM', JOBS, GROUP, consumer, lease, id, 'JUSTID')
    taken[#taken + 1] = {id, entry[2][2]}
  else
    redis.call('XACK', JOBS, GROUP, id) -- deleted behind our back: would stay pending for ever
  end
  forget_if_idle(owner)
end

if #taken < count then
  local reply = redis.call('XREADGROUP', 'GROUP', GROUP, consumer, 'COUNT', count - #taken, 'STREAMS', JOBS, '>')
  for _, entry in ipairs(reply and reply[1][2] or {}) do taken[#taken + 1] = {entry[1], entry[2][2]} end
end
return taken
