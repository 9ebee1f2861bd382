-- A pod's last reader of a stream has left.
-- KEYS: 1 attached
-- ARGV: 1 pod id  2 now ms
-- Reply: how many other pods still have readers
redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', ARGV[2])
return redis.call('ZCARD', KEYS[1])
