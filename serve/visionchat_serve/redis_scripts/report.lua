-- Note a replica's report, forget old ones. KEYS: reports. ARGV: _, _, replica, report, ttl
local now, ttl = now_ms(), tonumber(ARGV[5])
local all = redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
  if tonumber(string.match(all[i + 1], '^%d+')) <= now then redis.call('HDEL', KEYS[1], all[i]) end
end
redis.call('HSET', KEYS[1], ARGV[3], string.format('%d %s', now + ttl, ARGV[4]))
keep(ttl, KEYS[1])
