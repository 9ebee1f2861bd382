-- Renew the leases of all jobs a worker runs, and note when their first token came.
-- KEYS: 1 running
-- ARGV: 1 worker id  2 lease ms  3 job key prefix  4.. triples of id, attempt, first token ms (0: none yet)
-- Reply: a list, 1 for each job that is still this worker's under this attempt, 0 for each it has lost
local held = {}
for i = 4, #ARGV, 3 do
  local job = ARGV[3] .. ARGV[i]
  local record = redis.call('HMGET', job, 'state', 'worker', 'attempt')
  if record[1] == 'running' and record[2] == ARGV[1] and record[3] == ARGV[i + 1] then
    redis.call('ZADD', KEYS[1], now + tonumber(ARGV[2]), ARGV[i])
    if ARGV[i + 2] ~= '0' then redis.call('HSETNX', job, 'first_token_ms', ARGV[i + 2]) end
    held[#held + 1] = 1
  else
    held[#held + 1] = 0
  end
end
return held
