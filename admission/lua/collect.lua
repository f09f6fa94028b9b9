-- collect: what was handed to a driver since its last call. Its standing want lives on.
-- KEYS 16: those of admission/keys.py, in its order
-- ARGV: clock, passes, driver, then the ids that the driver received since its last call
-- Result: rows as of claim.lua

local driver = ARGV[3]

renew()
hear(driver, 4)
local want = want_of(driver)
if want then
  want.expires = now_us() + WANT_LEASE_US
  set_want(driver, want)
end
return undelivered(driver)
