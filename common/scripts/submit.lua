-- Accept a job, or find the job that an idempotency key already named.
-- KEYS: 1 queue  2 job record  3 arq job payload  4 wake list  5 deadlines  6 idempotency key
-- ARGV: 1 id  2 model's max depth  3 priority bonus ms  4 queue timeout ms (0: none)  5 total timeout ms (0: none)
--       6 arq payload  7 request fingerprint ('': no idempotency key)  8 job key prefix  9.. field, value pairs of the record
-- Reply: {'accepted', id, record} | {'exists', id, record} | {'mismatch', id} | {'full', depth}; record: as HGETALL replies it
local id = ARGV[1]

local function found(id) return {'exists', id, redis.call('HGETALL', ARGV[8] .. id)} end

-- A retry of this very call, whose first reply was lost, must not queue the job twice.
if redis.call('EXISTS', KEYS[2]) == 1 then return found(id) end

if ARGV[7] ~= '' then
  local known = redis.call('HMGET', KEYS[6], 'id', 'fingerprint')
  -- The record may be gone (expired), or going (deleted): then the key is free again.
  local first = known[1] and redis.call('HMGET', ARGV[8] .. known[1], 'state', 'deleted')
  if first and first[1] and not first[2] then
    if known[2] == ARGV[7] then return found(known[1]) end
    return {'mismatch', known[1]}
  end
end

local depth = redis.call('ZCARD', KEYS[1])
if depth >= tonumber(ARGV[2]) then return {'full', depth} end

local deadline = 0
if tonumber(ARGV[5]) > 0 then deadline = now + tonumber(ARGV[5]) end
for i = 9, #ARGV, 2 do redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1]) end
enqueue(KEYS[1], KEYS[5], id, KEYS[2], now_us, ARGV[3], ARGV[4], deadline)
redis.call('SET', KEYS[3], ARGV[6])
if ARGV[7] ~= '' then
  redis.call('HSET', KEYS[6], 'id', id, 'fingerprint', ARGV[7])
  redis.call('HSET', KEYS[2], 'idem', KEYS[6])
end
wake(KEYS[4], 1)
return {'accepted', id, redis.call('HGETALL', KEYS[2])}
