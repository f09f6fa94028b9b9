-- release_lease: end a lease, when it is still the caller's.
-- KEYS 1: the lease
-- ARGV: the caller
-- Result: 'released', or 'lost' when it has ended or is another's

if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 'lost' end
redis.call('DEL', KEYS[1])
return 'released'
