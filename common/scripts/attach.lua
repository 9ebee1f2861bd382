-- A pod has readers of these streams, for as long as it says so again.
-- KEYS: attached...
-- ARGV: 1 pod id  2 ttl ms
local until_ms = now + tonumber(ARGV[2])
for _, key in ipairs(KEYS) do
  redis.call('ZADD', key, until_ms, ARGV[1])
  redis.call('PEXPIRE', key, ARGV[2])
end
return #KEYS
