-- The reports that still hold. KEYS: reports.
local now, valid = now_ms(), {}
for _, value in ipairs(redis.call('HVALS', KEYS[1])) do
  local expires, report = string.match(value, '^(%d+) (.*)$')
  if tonumber(expires) > now then valid[#valid + 1] = report end
end
return valid
