-- reconcile: find out whether keys of the queue were lost from among the others (evicted, deleted, expired). What is left
--   then cannot be trusted: the queue begins anew, empty. Drivers run on what they have, and origins offer again what they
--   wait for.
-- KEYS 16: those of admission/keys.py, in its order
-- ARGV: clock, passes
-- Result: 'whole', or 'begun anew'

local lanes, drivers = redis.call('HKEYS', LANES), redis.call('HKEYS', BEATS)

-- Entries of a lane, and accounts whose turn may come there.
local function in_lane(lane)
  local name = #lane .. ':' .. lane
  return redis.call('ZLEXCOUNT', LINES, '[' .. name, '(' .. name .. '\255'), redis.call('ZCARD', turns_in(lane))
end

local function is_whole()
  local waiting, with_drivers, paused, in_lines = redis.call('ZCARD', WAITING), 0, 0, 0
  for _, driver in ipairs(drivers) do
    with_drivers = with_drivers + redis.call('ZCARD', handed_by(driver)) + redis.call('SCARD', held_by(driver))
    paused = paused + redis.call('ZCARD', paused_by(driver))
  end
  for _, lane in ipairs(lanes) do
    local entries, turns = in_lane(lane)
    if (entries > 0) ~= (turns > 0) then return false end
    in_lines = in_lines + entries
  end
  local entries = redis.call('HLEN', ENTRIES)
  return entries == waiting + paused + with_drivers
    and entries == redis.call('HLEN', PAYLOADS)
    and waiting == in_lines and waiting == redis.call('ZCARD', LINES)
    and waiting + paused == total('requests')
end

if is_whole() then return 'whole' end

for _, packed in ipairs(redis.call('HVALS', ENTRIES)) do
  local entry = cmsgpack.unpack(packed)
  drivers[#drivers + 1], lanes[#lanes + 1] = entry.driver, entry.lane
end
for _, driver in ipairs(drivers) do
  redis.call('DEL', handed_by(driver), held_by(driver), paused_by(driver), inbox_of(driver))
end
for _, lane in ipairs(lanes) do redis.call('DEL', turns_in(lane), idle_in(lane)) end
redis.call('DEL', unpack(KEYS, 1, 9))
return 'begun anew'
