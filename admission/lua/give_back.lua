-- give_back: the driver had to pause these sequences. They wait in its own line with their old scores, past the bounds if
--   need be; a driver that gives back has no room, so its standing want ends.
-- KEYS 16: those of admission/keys.py, in its order
-- ARGV: clock, passes, driver, ids
-- Result: 'given_back'

local driver = ARGV[3]

renew()
redis.call('HDEL', WANTS, driver)
for index = 4, #ARGV do
  local entry = load_entry(ARGV[index])
  if entry and entry.driver == driver and entry.place ~= 'paused' then put_back(entry, driver) end
end
return 'given_back'
