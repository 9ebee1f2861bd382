-- Find jobs whose lease ran out: send them back to the queue, or hand those that must end to the caller.
-- KEYS: 1 queue  2 running  3 wake list  4 deadlines  5 swept (hash: last ms, grace ms)
-- ARGV: 1 caller id  2 lease ms  3 losses after which a job fails  4 backoff ms before the third attempt
--       5 most jobs to look at  6 job key prefix  7 cancel key prefix
-- Reply: {number requeued, {{id, attempt, 'worker_lost' | cancel reason}, ...}}; the caller owns the listed jobs
--        under a fresh lease and must write their end event and finish them.

-- Nobody has swept for a while: Redis was away or stood still, and owners could not renew either. Give them the time
-- of one lease to do so before anything is taken from them.
local pause_ms = 2000
local swept = redis.call('HMGET', KEYS[5], 'last', 'grace')
redis.call('HSET', KEYS[5], 'last', now)
redis.call('PEXPIRE', KEYS[5], 60000)
if not swept[1] or now - tonumber(swept[1]) > pause_ms then
  swept[2] = now + tonumber(ARGV[2])
  redis.call('HSET', KEYS[5], 'grace', swept[2])
end
if now < tonumber(swept[2]) then return {0, {}} end

local requeued = 0
local to_end = {}

local function requeue(id, score)
  redis.call('ZREM', KEYS[2], id)
  redis.call('ZADD', KEYS[1], score, id)
  wake(KEYS[3], 1)
  requeued = requeued + 1
end

local function hand_over(id, job, why)
  local attempt = redis.call('HINCRBY', job, 'attempt', 1)
  redis.call('HSET', job, 'state', 'running', 'worker', ARGV[1])
  redis.call('ZADD', KEYS[2], now + tonumber(ARGV[2]), id)
  redis.call('ZREM', KEYS[4], id)
  to_end[#to_end + 1] = {id, attempt, why}
end

for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, ARGV[5])) do
  local job = ARGV[6] .. id
  local record = redis.call('HMGET', job, 'state', 'score', 'queue_timeout_ms', 'deadline_ms')
  local state, score = record[1], record[2]
  local cancelled = redis.call('GET', ARGV[7] .. id)
  if state ~= 'running' and state ~= 'queued' then
    redis.call('ZREM', KEYS[2], id)
  elseif cancelled then
    hand_over(id, job, cancelled)
  elseif state == 'queued' then
    requeue(id, score)  -- its backoff is over
  else
    local losses = redis.call('HINCRBY', job, 'losses', 1)
    if losses >= tonumber(ARGV[3]) then
      hand_over(id, job, 'worker_lost')
    else
      redis.call('HSET', job, 'state', 'queued')
      limit_wait(KEYS[4], id, record[4], record[3])
      if losses == 1 then
        requeue(id, score)  -- most losses are one crashed worker: readers should not wait longer than the lease
      else
        -- A backoff is spent in the running set, so that the queue holds nothing but what may start now.
        redis.call('ZADD', KEYS[2], now + tonumber(ARGV[4]) * 2 ^ (losses - 2), id)
      end
    end
  end
end
return {requeued, to_end}
