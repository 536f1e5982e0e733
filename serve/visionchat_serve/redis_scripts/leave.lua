-- Forget a consumer; the leases that it holds end now. ARGV: policy, consumer
redis.call('HDEL', REPORTS, ARGV[2])
for _, id in ipairs(redis.call('ZRANGEBYSCORE', LEASED, '(' .. NOW, '+inf')) do
  if get(id, 'consumer') == ARGV[2] then
    redis.call('ZADD', LEASED, NOW, id)
    ring()
  end
end
