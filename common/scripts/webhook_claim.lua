-- Take deliveries that are due, each under a lease: who has not settled one by its end is taken for dead.
-- KEYS: 1 webhooks
-- ARGV: 1 most deliveries  2 lease ms  3 webhook key prefix
-- Reply: {number of unsettled deliveries, {{subject, try, url, owner, status, created ms}, ...}}
local claimed = {}
for _, subject in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, ARGV[1])) do
  local webhook = ARGV[3] .. subject
  local try = redis.call('HINCRBY', webhook, 'tries', 1)
  local event = redis.call('HMGET', webhook, 'url', 'owner', 'status', 'created_ms')
  redis.call('ZADD', KEYS[1], now + tonumber(ARGV[2]), subject)
  -- Events that an older version wrote have no owner (rolling upgrades).
  claimed[#claimed + 1] = {subject, try, event[1], event[2] or '', event[3], event[4]}
end
return {redis.call('ZCARD', KEYS[1]), claimed}
