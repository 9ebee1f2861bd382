-- What every script begins with. Redis's clock, because those who call have no common one.
local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
local now = math.floor(now_us / 1000)

-- Have `count` idle workers look at the queue. Bounded and short-lived: with no worker alive nobody pops it, and a
-- worker that starts looks anyway.
local function wake(list, count)
  for _ = 1, count do redis.call('LPUSH', list, 1) end
  redis.call('LTRIM', list, 0, 999)
  redis.call('PEXPIRE', list, 60000)
end

-- Note when the wait of a queued job is over: at its deadline, or `timeout` ms from now. 0: none.
local function limit_wait(deadlines, id, deadline, timeout)
  local leave, limit = tonumber(deadline), tonumber(timeout)
  if limit > 0 and (leave == 0 or now + limit < leave) then leave = now + limit end
  if leave > 0 then redis.call('ZADD', deadlines, leave, id) end
end

-- Make a waiting job of the record at `job`: submitted at `submitted_us` and put ahead by `bonus` ms. `timeout` ms and
-- `deadline` as for limit_wait.
local function enqueue(queue, deadlines, id, job, submitted_us, bonus, timeout, deadline)
  -- With microseconds, so that jobs submitted in the same millisecond keep their order.
  local score = string.format('%.3f', submitted_us / 1000 - bonus)
  redis.call('HSET', job, 'state', 'queued', 'attempt', 0, 'losses', 0, 'created_ms', now,
    'score', score, 'queue_timeout_ms', timeout, 'deadline_ms', deadline)
  redis.call('ZADD', queue, score, id)
  limit_wait(deadlines, id, deadline, timeout)
end
