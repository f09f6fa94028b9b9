-- next_epoch: a fencing number above every one given before, and above what a worker has seen.
-- KEYS 1: the epoch counter
-- ARGV: the greatest epoch known elsewhere
-- Result: the new epoch

local last = tonumber(redis.call('GET', KEYS[1]) or 0)
local epoch = math.max(last, tonumber(ARGV[1])) + 1
redis.call('SET', KEYS[1], string.format('%.0f', epoch))
return epoch
