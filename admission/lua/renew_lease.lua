-- renew_lease: let a lease live on, while it is still the caller's.
-- KEYS 1: the lease
-- ARGV: the caller, lifetime (ms)
-- Result: 'renewed', or 'lost' when it has ended or is another's

if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 'lost' end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 'renewed'
