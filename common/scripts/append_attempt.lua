-- Write the first entry of a new attempt after whatever the log holds, fencing every older attempt.
-- KEYS: 1 stream
-- ARGV: 1 attempt  2 event (msgpack)
-- Reply: {'written', id} | {'fenced', last id}: a newer attempt has written | {'ended', last id}
-- A repeat whose first reply was lost finds its own entry and gets the same id.
local last = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1]
local seq = 0
if last then
  local attempt
  attempt, seq = string.match(last[1], '(%d+)-(%d+)')
  local written = last[2][2]
  if tonumber(attempt) == tonumber(ARGV[1]) and written == ARGV[2] then return {'written', last[1]} end
  if cmsgpack.unpack(written)['type'] == 'end' then return {'ended', last[1]} end
  if tonumber(attempt) >= tonumber(ARGV[1]) then return {'fenced', last[1]} end
end
local id = ARGV[1] .. '-' .. (tonumber(seq) + 1)
redis.call('XADD', KEYS[1], id, 'e', ARGV[2])
return {'written', id}
