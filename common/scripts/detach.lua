-- A pod's last reader of a stream has left.
-- KEYS: 1 attached
-- ARGV: 1 pod id
-- Reply: how many other pods still have readers
local t = redis.call('TIME')
redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', t[1] * 1000 + math.floor(t[2] / 1000))
return redis.call('ZCARD', KEYS[1])
