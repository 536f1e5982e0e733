-- The reports that still hold. ARGV: policy
local valid = {}
for _, value in ipairs(redis.call('HVALS', REPORTS)) do
  local expires, report = string.match(value, '^(%d+) %d+ (.*)$')
  if tonumber(expires) > NOW then valid[#valid + 1] = report end
end
return valid
