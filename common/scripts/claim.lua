-- Move the first waiting jobs from the queue to a worker, under a lease.
-- KEYS: 1 queue  2 running  3 wake list  4 deadlines
-- ARGV: 1 worker id  2 most jobs to claim  3 lease ms  4 job key prefix  5 arq payload prefix  6 cancel key prefix
-- Reply: a list of {id, attempt, arq payload, cancel reason or false, {record field, value, ...}}
local claimed = {}
while #claimed < tonumber(ARGV[2]) do
  local popped = redis.call('ZPOPMIN', KEYS[1])
  if #popped == 0 then
    -- Nothing waits, so whatever wake elements are left would only wake idle workers for nothing.
    redis.call('DEL', KEYS[3])
    break
  end
  local id = popped[1]
  local job = ARGV[4] .. id
  -- An id without a queued record is a leftover (deleted, or ended by somebody else): drop it.
  if redis.call('HGET', job, 'state') == 'queued' then
    local attempt = redis.call('HINCRBY', job, 'attempt', 1)
    redis.call('HSET', job, 'state', 'running', 'worker', ARGV[1])
    redis.call('HSETNX', job, 'started_ms', now)
    redis.call('ZADD', KEYS[2], now + tonumber(ARGV[3]), id)
    redis.call('ZREM', KEYS[4], id)
    claimed[#claimed + 1] = {id, attempt, redis.call('GET', ARGV[5] .. id), redis.call('GET', ARGV[6] .. id),
      redis.call('HGETALL', job)}
  end
end
return claimed
