-- Cancel a job in whatever state it is. The cancel key is durable: it stays until the job has ended.
-- KEYS: 1 job record  2 cancel key  3 deadlines
-- ARGV: 1 id  2 reason  3 caller id  4 lease ms  5 queue key prefix  6 running key prefix
--       7 '1': forget the record when it has ended
-- Reply: {'missing'} | {'terminal', state} | {'running', worker}
--        | {'claimed', attempt}: it was waiting; the caller owns it now, must write its end event and finish it
local record = redis.call('HMGET', KEYS[1], 'state', 'model', 'worker')
local state = record[1]
-- Nothing is remembered for an unknown id, or a later job with that id would die of it (arq#485).
if not state then return {'missing'} end
if state ~= 'queued' and state ~= 'running' then return {'terminal', state} end

redis.call('SET', KEYS[2], ARGV[2], 'NX')
if ARGV[7] == '1' then redis.call('HSET', KEYS[1], 'deleted', 1) end
if state == 'running' then return {'running', record[3]} end

redis.call('ZREM', ARGV[5] .. record[2], ARGV[1])
redis.call('ZREM', KEYS[3], ARGV[1])
redis.call('ZADD', ARGV[6] .. record[2], now + tonumber(ARGV[4]), ARGV[1])
redis.call('HSET', KEYS[1], 'state', 'running', 'worker', ARGV[3])
return {'claimed', redis.call('HINCRBY', KEYS[1], 'attempt', 1)}
