-- release_lease: give up a lease that is still one's own. Others can take it at once.
-- KEYS 1: the lease
-- ARGV: its holder
-- Result: 1 when given up, 0 when it was not one's own

if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], '', 'KEEPTTL')
return 1
