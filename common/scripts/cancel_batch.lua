-- Cancel every line of a batch that has not ended, in one step.
-- KEYS: 1 batch  2 lines of the batch  3 deadlines
-- ARGV: 1 reason  2 job key prefix  3 cancel key prefix
-- Reply: 'missing' | 'completed' | 'cancelling': also when it was cancelled before, and all of it has ended
if redis.call('EXISTS', KEYS[1]) == 0 then return 'missing' end
local batch = redis.call('HMGET', KEYS[1], 'ended_ms', 'cancelling_ms')
if batch[1] then return batch[2] and 'cancelling' or 'completed' end
redis.call('HSETNX', KEYS[1], 'cancelling_ms', now)
for _, line in ipairs(redis.call('ZRANGE', KEYS[2], 0, -1)) do
  local id = cmsgpack.unpack(line)[1]
  local state = redis.call('HGET', ARGV[2] .. id, 'state')
  if state == 'queued' or state == 'running' then redis.call('SET', ARGV[3] .. id, ARGV[1], 'NX') end
  -- Its wait is over: the janitor of any pod or worker ends it. So nobody has to live for the rest of the cancel.
  if state == 'queued' then redis.call('ZADD', KEYS[3], now, id) end
end
return 'cancelling'
