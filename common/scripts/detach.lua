-- A pod's last reader of a stream has left.
-- KEYS: 1 attached
-- ARGV: 1 pod id
-- Reply: how many other pods still have readers
redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
return redis.call('ZCARD', KEYS[1])
