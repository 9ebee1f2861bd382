-- Record what became of one try of a delivery.
-- KEYS: 1 webhooks  2 webhook
-- ARGV: 1 subject  2 try  3 'delivered' | 'given_up' | 'retry'  4 ms until the next try
-- Reply: 1, or 0 when nothing was changed
-- A success counts whoever reports it: the receiver has the event. A failure is heard only from the try that is the
-- latest; an older one's lease lapsed, and somebody else is sending.
if ARGV[3] ~= 'delivered' and redis.call('HGET', KEYS[2], 'tries') ~= ARGV[2] then return 0 end
if ARGV[3] == 'retry' then
  redis.call('ZADD', KEYS[1], now + tonumber(ARGV[4]), ARGV[1])
  return 1
end
redis.call('DEL', KEYS[2])
return redis.call('ZREM', KEYS[1], ARGV[1])
