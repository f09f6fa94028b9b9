-- claim: give a driver the best entries that it has room for, or one in exchange for its weakest sequence; what it asked
--   for and did not get stands as its want.
-- KEYS 16: those of admission/keys.py, in its order
-- ARGV: clock, passes, driver, slots, KV room in tokens ('' for unlimited), then of the weakest sequence the id, rank and
--   score ('' for none), then how many classes are short of slots, for each its name and by how many, then the ids that
--   the driver received since its last call
-- Result: rows of {id, class, rank, arrival, score, 'head start' or 'fixed', lane, account, tokens, tenant, origin,
--   payload, victim's id or ''}: all that was given to the driver and not yet received

local driver = ARGV[3]
local want = {slots = tonumber(ARGV[4]), kv_tokens = tonumber(ARGV[5]), expires = now_us() + WANT_LEASE_US, short = {}}
if ARGV[6] ~= '' then want.weakest = {id = ARGV[6], rank = tonumber(ARGV[7]), score = tonumber(ARGV[8])} end
local received = 10 + 2 * tonumber(ARGV[9])
for index = 10, received - 1, 2 do want.short[ARGV[index]] = tonumber(ARGV[index + 1]) end

renew()
hear(driver, received)
redis.call('DEL', inbox_of(driver))

-- What was given before and is still on its way takes its part of the room.
for _, row in ipairs(undelivered(driver)) do
  want.weakest = nil
  take_room(want, tonumber(row[9]), row[2])
end

local choice = choose(driver, want, NOTHING)
while choice do
  give(choice, driver)
  take(want, choice)
  choice = choose(driver, want, NOTHING)
end

set_want(driver, want)
wake_claimants()
return undelivered(driver)
