-- Give a job back: its worker shuts down, or its engine died under it.
-- KEYS: 1 queue  2 running  3 wake list  4 deadlines  5 job record
-- ARGV: 1 id  2 worker id  3 attempt  4 '1': counts as a loss  5 losses after which a job fails
-- Reply: 'released' | 'lost': not this worker's any more | 'exhausted': still this worker's, and it must end it
local record = redis.call('HMGET', KEYS[5], 'state', 'worker', 'attempt', 'score', 'deadline_ms', 'queue_timeout_ms')
if record[1] ~= 'running' or record[2] ~= ARGV[2] or record[3] ~= ARGV[3] then return 'lost' end
if ARGV[4] == '1' and redis.call('HINCRBY', KEYS[5], 'losses', 1) >= tonumber(ARGV[5]) then return 'exhausted' end
redis.call('HSET', KEYS[5], 'state', 'queued')
-- So that readers can be told why the job waits again. A loss needs no mark: it is everything else.
if ARGV[4] ~= '1' then redis.call('HSET', KEYS[5], 'handed_over', ARGV[3]) end
redis.call('ZREM', KEYS[2], ARGV[1])
redis.call('ZADD', KEYS[1], record[4], ARGV[1])
limit_wait(KEYS[4], ARGV[1], record[5], record[6])
wake(KEYS[3], 1)
return 'released'
