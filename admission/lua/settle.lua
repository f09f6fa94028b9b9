-- settle: these sequences of the driver have ended. Ids that it does not hold (any more) change nothing.
-- KEYS 16: those of admission/keys.py, in its order
-- ARGV: clock, passes, driver, ids
-- Result: 'settled'

renew()
for index = 4, #ARGV do
  local entry = load_entry(ARGV[index])
  if entry and entry.driver == ARGV[3] then finish(entry, 'settled') end
end
wake_claimants()
return 'settled'
