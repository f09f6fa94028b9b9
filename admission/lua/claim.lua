-- claim: give a driver the best entries that it has room for, or one in exchange for its weakest sequence; what it asked
--   for and did not get stands as its want.
-- KEYS 11: those of admission/keys.py, in its order
-- ARGV: clock, driver, slots, KV room in tokens ('' for unlimited), then of the weakest sequence the id, rank and score
--   ('' for none), then the ids that the driver received since its last call
-- Result: rows of {id, class, rank, arrival, score, tokens, tenant, payload, victim's id or ''}: all that was given to the
--   driver and not yet received

local driver = ARGV[2]
local want = {slots = tonumber(ARGV[3]), kv_tokens = tonumber(ARGV[4]), expires = now_us() + WANT_LEASE_US}
if ARGV[5] ~= '' then want.weakest = {id = ARGV[5], rank = tonumber(ARGV[6]), score = tonumber(ARGV[7])} end

renew()
hear(driver, 8)
redis.call('DEL', inbox_of(driver))

-- What was given before and is still on its way takes its part of the room.
local rows, tokens = undelivered(driver)
if #rows > 0 then want.weakest = nil end
want.slots = math.max(0, want.slots - #rows)
want.kv_tokens = want.kv_tokens and want.kv_tokens - tokens

local best = best_for(driver)
local victim = best and victim_for(best, driver, want)
if victim then
  detach(best)
  give(best, driver, victim.id)
  put_back(victim, driver)
  want.weakest = nil
end
while best and has_room(want, best.tokens) do
  detach(best)
  give(best, driver)
  want.slots = want.slots - 1
  want.kv_tokens = want.kv_tokens and want.kv_tokens - best.tokens
  best = best_for(driver)
end

set_want(driver, want)
wake_claimants()
return (undelivered(driver))
