-- Turn a job's record terminal, if the caller still owns it. Only ended jobs and their idempotency keys get a time to
-- live; those of a batch when all of it has ended.
-- KEYS: 1 job record  2 running  3 arq payload  4 cancel key  5 deadlines  6 steer key  7 webhooks
-- ARGV: 1 id  2 worker id  3 attempt  4 terminal state  5 record ttl ms  6 webhook key prefix  7 job key prefix
--       8.. field, value pairs
-- Reply: 1, also for a repeat by the same owner; 0 when the job is somebody else's or gone
local record = redis.call('HMGET', KEYS[1], 'state', 'worker', 'attempt', 'deleted', 'idem', 'options', 'batch', 'owner')
-- Queued: the lease ran out and the job waits again; whoever claims it finds the end in the log.
if record[2] ~= ARGV[2] or record[3] ~= ARGV[3] or record[1] == 'queued' then return 0 end
if record[1] ~= 'running' then return 1 end
local deleted, idem, batch, owner = record[4], record[5], record[7], record[8]

-- The end and the news of it are one step, so that a caller that dies now loses neither.
local function tell(url, subject, status)
  if not url then return end
  redis.call('HSET', ARGV[6] .. subject, 'url', url, 'owner', owner, 'status', status, 'created_ms', now)
  redis.call('ZADD', KEYS[7], now, subject)
end

local function count_in_batch()
  local answered = ARGV[4] == 'completed' or ARGV[4] == 'incomplete'
  redis.call('HINCRBY', batch, answered and 'completed' or 'failed', 1)
  local whole = redis.call('HMGET', batch, 'total', 'completed', 'failed', 'id', 'lines', 'idem', 'webhook_url',
    'cancelling_ms')
  if whole[2] + whole[3] < tonumber(whole[1]) then return end
  redis.call('HSET', batch, 'ended_ms', now, 'expires_ms', now + tonumber(ARGV[5]))
  for _, line in ipairs(redis.call('ZRANGE', whole[5], 0, -1)) do
    local job = ARGV[7] .. cmsgpack.unpack(line)[1]
    if redis.call('PEXPIRE', job, ARGV[5]) == 1 then
      redis.call('HSET', job, 'expires_ms', now + tonumber(ARGV[5]))
    end
  end
  redis.call('PEXPIRE', batch, ARGV[5])
  redis.call('PEXPIRE', whole[5], ARGV[5])
  if whole[6] then redis.call('PEXPIRE', whole[6], ARGV[5]) end
  tell(whole[7], whole[4], whole[8] and 'cancelled' or 'completed')
end

redis.call('ZREM', KEYS[2], ARGV[1])
redis.call('ZREM', KEYS[5], ARGV[1])
redis.call('DEL', KEYS[3], KEYS[4], KEYS[6])
if deleted then
  redis.call('DEL', KEYS[1])
  -- Free since the delete, so it may be the key of a later job by now.
  if idem and redis.call('HGET', idem, 'id') == ARGV[1] then redis.call('DEL', idem) end
else
  redis.call('HSET', KEYS[1], 'state', ARGV[4], 'finished_ms', now)
  for i = 8, #ARGV, 2 do
    -- The first token is that of the first attempt that had one.
    local set = ARGV[i] == 'first_token_ms' and 'HSETNX' or 'HSET'
    redis.call(set, KEYS[1], ARGV[i], ARGV[i + 1])
  end
  if not batch then
    redis.call('HSET', KEYS[1], 'expires_ms', now + tonumber(ARGV[5]))
    redis.call('PEXPIRE', KEYS[1], ARGV[5])
  end
  if idem then redis.call('PEXPIRE', idem, ARGV[5]) end
  tell(cmsgpack.unpack(record[6])['webhook_url'], ARGV[1], ARGV[4])
end
if batch then count_in_batch() end
return 1
