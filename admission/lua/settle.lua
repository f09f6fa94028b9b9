-- settle: these sequences of the driver have ended. Ids that it does not hold (any more) change nothing.
-- KEYS 11: those of admission/keys.py, in its order
-- ARGV: clock, driver, ids
-- Result: 'settled'

renew()
for index = 3, #ARGV do
  local entry = load_entry(ARGV[index])
  if entry and entry.driver == ARGV[2] then finish(entry, 'settled') end
end
wake_claimants()
return 'settled'
