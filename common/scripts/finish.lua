-- Turn a job's record terminal, if the caller still owns it. Only ended jobs and their idempotency keys get a time to
-- live.
-- KEYS: 1 job record  2 running  3 arq payload  4 cancel key  5 deadlines  6 steer key  7 webhooks
-- ARGV: 1 id  2 worker id  3 attempt  4 terminal state  5 record ttl ms  6 webhook key prefix  7.. field, value pairs
-- Reply: 1, also for a repeat by the same owner; 0 when the job is somebody else's or gone
local record = redis.call('HMGET', KEYS[1], 'state', 'worker', 'attempt', 'deleted', 'idem', 'options')
-- Queued: the lease ran out and the job waits again; whoever claims it finds the end in the log.
if record[2] ~= ARGV[2] or record[3] ~= ARGV[3] or record[1] == 'queued' then return 0 end
if record[1] ~= 'running' then return 1 end
redis.call('ZREM', KEYS[2], ARGV[1])
redis.call('ZREM', KEYS[5], ARGV[1])
redis.call('DEL', KEYS[3], KEYS[4], KEYS[6])
if record[4] then
  redis.call('DEL', KEYS[1])
  if record[5] then redis.call('DEL', record[5]) end
  return 1
end
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
redis.call('HSET', KEYS[1], 'state', ARGV[4], 'finished_ms', now, 'expires_ms', now + tonumber(ARGV[5]))
for i = 7, #ARGV, 2 do
  -- The first token is that of the first attempt that had one.
  local set = ARGV[i] == 'first_token_ms' and 'HSETNX' or 'HSET'
  redis.call(set, KEYS[1], ARGV[i], ARGV[i + 1])
end
redis.call('PEXPIRE', KEYS[1], ARGV[5])
if record[5] then redis.call('PEXPIRE', record[5], ARGV[5]) end
-- The end and the news of it are one step, so that a caller that dies now loses neither.
local webhook_url = cmsgpack.unpack(record[6])['webhook_url']
if webhook_url then
  redis.call('HSET', ARGV[6] .. ARGV[1], 'url', webhook_url, 'status', ARGV[4], 'created_ms', now)
  redis.call('ZADD', KEYS[7], now, ARGV[1])
end
return 1
