-- renew_lease: keep a lease that is still one's own.
-- KEYS 1: the lease
-- ARGV: its holder, its lifetime in milliseconds
-- Result: 1 when renewed, 0 when somebody else holds it or nobody does

if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
