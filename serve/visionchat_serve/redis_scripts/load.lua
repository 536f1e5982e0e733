-- Jobs waiting, held and delayed, the pace of answers and the age of the oldest waiting job in ms as text. ARGV: policy
sweep()
local lost = redis.call('ZCOUNT', LEASED, '-inf', NOW)
local waiting = redis.call('ZCARD', INTERACTIVE) + redis.call('ZCARD', BATCH) + lost
local oldest = 0
for _, key in ipairs({INTERACTIVE, BATCH}) do
  local first = redis.call('ZRANGE', key, 0, 0)[1]
  if first then oldest = math.max(oldest, NOW - 1000 * (tonumber(get(first, 'created_at')) or NOW / 1000)) end
end
local held, delayed = redis.call('ZCARD', LEASED) - lost, redis.call('ZCARD', DELAYED)
return {waiting, held, delayed, tostring(pace_ms() or 0), tostring(oldest)}
