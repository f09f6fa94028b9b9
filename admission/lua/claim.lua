-- claim: give a driver the best entries that it has room for, or one in exchange for its weakest sequence; what it asked
--   for and did not get stands as its want.
-- KEYS 16: those of admission/keys.py, in its order
-- ARGV: clock, passes, driver, slots, KV room in tokens ('' for unlimited), then of the weakest sequence the id, rank and
--   score ('' for none), then the ids that the driver received since its last call
-- Result: rows of {id, class, rank, arrival, score, 'head start' or 'fixed', lane, account, tokens, tenant, origin,
--   payload, victim's id or ''}: all that was given to the driver and not yet received

local driver = ARGV[3]
local want = {slots = tonumber(ARGV[4]), kv_tokens = tonumber(ARGV[5]), expires = now_us() + WANT_LEASE_US}
if ARGV[6] ~= '' then want.weakest = {id = ARGV[6], rank = tonumber(ARGV[7]), score = tonumber(ARGV[8])} end

renew()
hear(driver, 9)
redis.call('DEL', inbox_of(driver))

-- What was given before and is still on its way takes its part of the room.
local rows, tokens = undelivered(driver)
if #rows > 0 then want.weakest = nil end
want.slots = math.max(0, want.slots - #rows)
want.kv_tokens = want.kv_tokens and want.kv_tokens - tokens

local choice = choose(driver, want)
while choice do
  give(choice, driver, want)
  choice = choose(driver, want)
end

set_want(driver, want)
wake_claimants()
return (undelivered(driver))
