-- forget_driver: the driver is gone. What it never received and what it had paused goes to the shared lines, past the bounds
--   if need be; what it had received is dropped and marked as lost: its origin offers it again, under another id.
-- KEYS 16: those of admission/keys.py, in its order
-- ARGV: clock, passes, driver, the beat at which it fell silent ('' to forget it in any case), then the ids that the driver
--   received since its last call
-- Result: {'forgotten', the ids that went to the shared lines}, or {'alive', {}} when it has been heard of since

local driver = ARGV[3]
if ARGV[4] ~= '' and redis.call('HGET', BEATS, driver) ~= ARGV[4] then
  is_change = false
  return {'alive', {}}
end
local waiting = {}
local function send_back(entry)
  if not entry.cancelled then waiting[#waiting + 1] = entry.id end
  put_back(entry)
end

renew()
hear(driver, 5)
for _, id in ipairs(redis.call('SMEMBERS', held_by(driver))) do finish(load_entry(id), 'lost') end
for _, id in ipairs(redis.call('ZRANGE', handed_by(driver), 0, -1)) do send_back(load_entry(id)) end
for _, name in ipairs(redis.call('ZRANGE', paused_by(driver), 0, -1)) do send_back(load_entry(id_in_line(name))) end
redis.call('HDEL', WANTS, driver)
redis.call('HDEL', BEATS, driver)
redis.call('DEL', inbox_of(driver))
wake_claimants()
return {'forgotten', waiting}
