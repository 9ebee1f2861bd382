-- Change generation parameters of a job that has not ended.
-- KEYS: 1 job record  2 steer key
-- ARGV: field, value pairs (fields `steer:<parameter>`, values msgpack)
-- Reply: {'missing'} | {'terminal', state} | {'steered', state, version}
-- The overrides are fields of their own, so that changes of several callers merge without reading the request.
local state = redis.call('HGET', KEYS[1], 'state')
if not state then return {'missing'} end
if state ~= 'queued' and state ~= 'running' then return {'terminal', state} end
redis.call('HSET', KEYS[1], unpack(ARGV))
local version = redis.call('HINCRBY', KEYS[1], 'steered', 1)
-- For the worker that runs it, polled with the cancel keys; gone with the job.
redis.call('SET', KEYS[2], version)
return {'steered', state, version}
