-- Jobs waiting, held and delayed, and the pace of answers in ms as text. ARGV: policy
sweep()
local lost = redis.call('ZCOUNT', LEASED, '-inf', NOW)
local waiting = redis.call('ZCARD', INTERACTIVE) + redis.call('ZCARD', BATCH) + lost
return {waiting, redis.call('ZCARD', LEASED) - lost, redis.call('ZCARD', DELAYED), tostring(pace_ms() or 0)}
