-- Drivers: what they were given, and how they hear of it.

-- The driver lives, and received what it says it did (ids from ARGV[first] on).
local function hear(driver, first)
  redis.call('HINCRBY', BEATS, driver, 1)
  keep(BEATS)
  for index = first, #ARGV do
    if redis.call('ZREM', handed_by(driver), ARGV[index]) == 1 then
      local entry = load_entry(ARGV[index])
      if entry then
        entry.place, entry.victim = 'held', nil
        redis.call('SADD', held_by(driver), entry.id)
        save(entry)
      end
    end
  end
  keep(handed_by(driver))
  keep(held_by(driver))
  keep(paused_by(driver))
end

-- What was given to the driver and not yet received, in order, as rows of the reply. One that was withdrawn meanwhile is
-- left out, unless it brings the news of a victim.
local function undelivered(driver)
  local rows = {}
  for _, id in ipairs(redis.call('ZRANGE', handed_by(driver), 0, -1)) do
    local entry = load_entry(id)
    if entry.cancelled and not entry.victim then
      finish(entry, 'withdrawn')
    else
      rows[#rows + 1] = {
        id, entry.class, integer(entry.rank), integer(entry.arrival), integer(entry.score),
        entry.is_fixed and 'fixed' or 'head start', entry.lane, entry.account, integer(entry.tokens), entry.tenant,
        entry.origin, redis.call('HGET', PAYLOADS, id), entry.victim or '',
      }
    end
  end
  return rows
end

local function is_woken(driver) return redis.call('LLEN', inbox_of(driver)) > 0 end

local function wake(driver)
  if not is_woken(driver) then redis.call('RPUSH', inbox_of(driver), 'wake') end
  keep(inbox_of(driver))
end
