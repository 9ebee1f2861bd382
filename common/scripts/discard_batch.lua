-- Forget the lines of a batch that was not accepted; unless it was, and only the reply was lost.
-- KEYS: 1 batch  2 lines of the batch
-- ARGV: 1 job key prefix  2 arq payload prefix
-- Reply: number of lines forgotten
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
local lines = redis.call('ZRANGE', KEYS[2], 0, -1)
for _, line in ipairs(lines) do
  local id = cmsgpack.unpack(line)[1]
  redis.call('UNLINK', ARGV[1] .. id, ARGV[2] .. id)
end
redis.call('UNLINK', KEYS[2])
return #lines
