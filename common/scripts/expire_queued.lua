-- Take waiting jobs that waited too long out of the queue and hand them to the caller to end.
-- KEYS: 1 deadlines
-- ARGV: 1 caller id  2 lease ms  3 most jobs  4 job key prefix  5 queue key prefix  6 running key prefix
--       7 cancel key prefix
-- Reply: a list of {id, attempt, 'deadline_exceeded' | 'queue_timeout' | reason of a cancel}
local expired = {}
for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, ARGV[3])) do
  redis.call('ZREM', KEYS[1], id)
  local job = ARGV[4] .. id
  local record = redis.call('HMGET', job, 'state', 'model', 'deadline_ms')
  if record[1] == 'queued' then
    redis.call('ZREM', ARGV[5] .. record[2], id)
    redis.call('ZADD', ARGV[6] .. record[2], now + tonumber(ARGV[2]), id)
    redis.call('HSET', job, 'state', 'running', 'worker', ARGV[1])
    local attempt = redis.call('HINCRBY', job, 'attempt', 1)
    local deadline = tonumber(record[3])
    local why = (deadline > 0 and deadline <= now) and 'deadline_exceeded' or 'queue_timeout'
    -- Durable, like any cancel: should the caller die before it has ended the job, nobody starts it after all.
    redis.call('SET', ARGV[7] .. id, why, 'NX')
    expired[#expired + 1] = {id, attempt, redis.call('GET', ARGV[7] .. id)}
  end
end
return expired
