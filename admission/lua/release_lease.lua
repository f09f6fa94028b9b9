-- release_lease: end a lease that is still one's own.
-- KEYS 1: the lease
-- ARGV: its holder
-- Result: 1 when released, 0 when it was not one's own

if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
