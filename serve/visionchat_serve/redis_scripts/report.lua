-- Note a replica's report, forget old ones. ARGV: policy, replica, how many jobs it runs at once, report, ttl
local ttl = tonumber(ARGV[5])
local all = redis.call('HGETALL', REPORTS)
for i = 1, #all, 2 do
  if tonumber(string.match(all[i + 1], '^%d+')) <= NOW then redis.call('HDEL', REPORTS, all[i]) end
end
redis.call('HSET', REPORTS, ARGV[2], string.format('%d %d %s', NOW + ttl, ARGV[3], ARGV[4]))
keep(ttl, REPORTS)
