-- A pod has readers of these streams, for as long as it says so again.
-- KEYS: attached...
-- ARGV: 1 pod id  2 ttl ms
-- Redis's clock, because one pod's wrong clock must not make another's readers look gone.
local t = redis.call('TIME')
local until_ms = t[1] * 1000 + math.floor(t[2] / 1000) + tonumber(ARGV[2])
for _, key in ipairs(KEYS) do
  redis.call('ZADD', key, until_ms, ARGV[1])
  redis.call('PEXPIRE', key, ARGV[2])
end
return #KEYS
