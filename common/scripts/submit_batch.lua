-- Accept all lines of a batch, each a job, or none of them; or find the batch that an idempotency key already named.
-- The lines' records are in Redis already, without a state and with a time to live: this is what makes jobs of them.
-- KEYS: 1 batch  2 lines of the batch  3 deadlines  4 idempotency key
-- ARGV: 1 batch id  2 most waiting jobs per model  3 request fingerprint ('': no idempotency key)  4 owner
--       5 webhook URL ('': none)  6 batch key prefix  7 job key prefix  8 arq payload prefix  9 queue key prefix
--       10 wake key prefix  11.. for each line: id, model, priority bonus ms, queue timeout ms (0: none), deadline ms
-- Reply: {'accepted'} | {'exists', id} | {'mismatch', id} | {'full', depth, model} | {'lost'}
local first, stride = 11, 5
local total = (#ARGV - first + 1) / stride

-- A retry of this very call, whose first reply was lost, must not queue the lines twice.
if redis.call('EXISTS', KEYS[1]) == 1 then return {'exists', ARGV[1]} end
if ARGV[3] ~= '' then
  local known = redis.call('HMGET', KEYS[4], 'id', 'fingerprint')
  if known[1] and redis.call('EXISTS', ARGV[6] .. known[1]) == 1 then
    return {known[2] == ARGV[3] and 'exists' or 'mismatch', known[1]}
  end
end

if redis.call('ZCARD', KEYS[2]) ~= total then return {'lost'} end
local depths, lines = {}, {}
for i = first, #ARGV, stride do
  local model = ARGV[i + 1]
  depths[model] = depths[model] or redis.call('ZCARD', ARGV[9] .. model)
  lines[model] = (lines[model] or 0) + 1
  if depths[model] + lines[model] > tonumber(ARGV[2]) then return {'full', depths[model], model} end
  if redis.call('EXISTS', ARGV[7] .. ARGV[i], ARGV[8] .. ARGV[i]) < 2 then return {'lost'} end
end

for i = first, #ARGV, stride do
  local id, job = ARGV[i], ARGV[7] .. ARGV[i]
  -- One microsecond more for each line, so that they keep their order.
  local submitted_us = now_us + (i - first) / stride
  enqueue(ARGV[9] .. ARGV[i + 1], KEYS[3], id, job, submitted_us, ARGV[i + 2], ARGV[i + 3], now + ARGV[i + 4])
  redis.call('HSET', job, 'batch', KEYS[1])
  redis.call('PERSIST', job)
  redis.call('PERSIST', ARGV[8] .. id)
end
for model, count in pairs(lines) do wake(ARGV[10] .. model, count) end

redis.call('PERSIST', KEYS[2])
redis.call('HSET', KEYS[1], 'id', ARGV[1], 'owner', ARGV[4], 'created_ms', now, 'lines', KEYS[2], 'total', total,
  'completed', 0, 'failed', 0)
if ARGV[5] ~= '' then redis.call('HSET', KEYS[1], 'webhook_url', ARGV[5]) end
if ARGV[3] ~= '' then
  redis.call('HSET', KEYS[4], 'id', ARGV[1], 'fingerprint', ARGV[3])
  redis.call('HSET', KEYS[1], 'idem', KEYS[4])
end
return {'accepted'}
