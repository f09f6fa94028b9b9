-- take_lease: hold a lease that nobody else holds. One that was given up holds an empty name until its time ends, so that
--   it can be told from one that the store has lost.
-- KEYS 1: the lease
-- ARGV: its new holder, its lifetime in milliseconds
-- Result: 1 when it is one's own now, as it may have been before; 0 when somebody else holds it

local holder = redis.call('GET', KEYS[1])
if holder and holder ~= '' and holder ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
