-- What the acts share; the loader puts it before each of them, after the constants of admission/keys.py.
--
-- KEYS are the same for every act (admission/keys.py has the reason for each). ARGV[1] is the clock of a test in
-- microseconds, '' for Redis's own. Every act is all or nothing, also when Redis is out of memory: it refuses only the
-- first write of a script. So an offer begins with a write that asks for memory, and may be refused before it changed
-- anything; every other act begins with one that does not, and then always runs to its end.
--
-- An entry lies in exactly one place: in a line ('waiting': the shared one, 'paused': its driver's own), where it counts
-- towards the bounds, or with a driver ('handed': receipt not yet known, 'held': received), where it does not.

local ENTRIES, PAYLOADS, WAITING, TOTALS, WANTS, BEATS = unpack(KEYS, 1, 6)

local function handed_by(driver) return KEYS[7] .. driver end
local function held_by(driver) return KEYS[8] .. driver end
local function paused_by(driver) return KEYS[9] .. driver end
local function inbox_of(driver) return KEYS[10] .. driver end
local function mark_of(id) return KEYS[11] .. id end

local function integer(number) return string.format('%.0f', number) end -- tostring() would round microseconds

local function now_us()
  if ARGV[1] ~= '' then return tonumber(ARGV[1]) end
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

local function keep(key) redis.call('PEXPIRE', key, QUEUE_TTL_MS) end

local function renew()
  for index = 1, 6 do keep(KEYS[index]) end
end

local function total(field) return tonumber(redis.call('HGET', TOTALS, field) or 0) end

local function next_number() return redis.call('HINCRBY', TOTALS, 'last_number', 1) end

-- Entries --------------------------------------------------------------------------------------------------------------

local function load_entry(id)
  local packed = redis.call('HGET', ENTRIES, id)
  return packed and cmsgpack.unpack(packed) or nil
end

local function save(entry) redis.call('HSET', ENTRIES, entry.id, cmsgpack.pack(entry)) end

local function add(field, number)
  redis.call('HINCRBY', TOTALS, field, number + 0) -- Lua's zero may be negative, and Redis takes no '-0'
end

local function count(entry, sign)
  add('requests', sign)
  add('tokens', sign * entry.tokens)
  add('bytes', sign * entry.bytes)
  add('class:' .. entry.class, sign)
end

local function line_of(entry) return entry.place == 'paused' and paused_by(entry.driver) or WAITING end

-- Equal scores go by arrival number: Redis orders them by name, so the name begins with it.
local function name_in_line(entry) return string.format('%016.0f', entry.number) .. ':' .. entry.id end

-- Into a line: the shared one, or that of the driver to which a paused sequence stays pinned.
local function join(entry, driver)
  entry.place = driver and 'paused' or 'waiting'
  entry.driver, entry.victim = driver, nil
  redis.call('ZADD', line_of(entry), integer(entry.score), name_in_line(entry))
  keep(line_of(entry))
  count(entry, 1)
  save(entry)
end

-- Out of wherever it lies.
local function detach(entry)
  if entry.place == 'handed' then
    redis.call('ZREM', handed_by(entry.driver), entry.id)
  elseif entry.place == 'held' then
    redis.call('SREM', held_by(entry.driver), entry.id)
  else
    redis.call('ZREM', line_of(entry), name_in_line(entry))
    count(entry, -1)
  end
end

local function drop(entry)
  detach(entry)
  redis.call('HDEL', ENTRIES, entry.id)
  redis.call('HDEL', PAYLOADS, entry.id)
end

-- Drop it, and remember for a while how it answered. `ending` is 'settled' or 'withdrawn'.
local function finish(entry, ending)
  drop(entry)
  redis.call('SET', mark_of(entry.id), entry.answer .. ':' .. ending, 'PX', MARK_TTL_MS)
end

-- From a driver back into a line, unless nobody wants it any more.
local function put_back(entry, driver)
  if entry.cancelled then return finish(entry, 'withdrawn') end
  detach(entry)
  join(entry, driver)
end

-- Drivers --------------------------------------------------------------------------------------------------------------

-- The driver lives, and received what it says it did (ids from ARGV[first] on).
local function hear(driver, first)
  redis.call('HINCRBY', BEATS, driver, 1)
  keep(BEATS)
  for index = first, #ARGV do
    if redis.call('ZREM', handed_by(driver), ARGV[index]) == 1 then
      local entry = load_entry(ARGV[index])
      entry.place, entry.victim = 'held', nil
      redis.call('SADD', held_by(driver), entry.id)
      save(entry)
    end
  end
  keep(handed_by(driver))
  keep(held_by(driver))
  keep(paused_by(driver))
end

local function give(entry, driver, victim)
  entry.place, entry.driver, entry.victim = 'handed', driver, victim
  redis.call('ZADD', handed_by(driver), next_number(), entry.id)
  keep(handed_by(driver))
  save(entry)
end

-- What was given to the driver and not yet received, in order, as rows of the reply. One that was withdrawn meanwhile is
-- left out, unless it brings the news of a victim.
local function undelivered(driver)
  local rows, tokens = {}, 0
  for _, id in ipairs(redis.call('ZRANGE', handed_by(driver), 0, -1)) do
    local entry = load_entry(id)
    if entry.cancelled and not entry.victim then
      finish(entry, 'withdrawn')
    else
      tokens = tokens + entry.tokens
      rows[#rows + 1] = {
        id, entry.class, integer(entry.rank), integer(entry.arrival), integer(entry.score), integer(entry.tokens),
        entry.tenant, redis.call('HGET', PAYLOADS, id), entry.victim or '',
      }
    end
  end
  return rows, tokens
end

local function wake(driver)
  if redis.call('LLEN', inbox_of(driver)) == 0 then redis.call('RPUSH', inbox_of(driver), 'wake') end
  keep(inbox_of(driver))
end

-- Wants ----------------------------------------------------------------------------------------------------------------

local function first_of(line)
  local name = redis.call('ZRANGE', line, 0, 0)[1]
  return name and load_entry(string.sub(name, 18)) or nil -- after sixteen digits and a colon
end

-- The entry that a claim of this driver takes next: the better of the shared line's first and its own line's.
local function best_for(driver)
  local shared, own = first_of(WAITING), first_of(paused_by(driver))
  if not (shared and own) then return shared or own end
  if own.score ~= shared.score then return own.score < shared.score and own or shared end
  return own.number < shared.number and own or shared
end

local function has_room(want, tokens)
  return want.slots > 0 and (not want.kv_tokens or tokens <= want.kv_tokens)
end

-- The sequence that `newcomer` may displace at a driver without free slots: of a worse class and of a worse score, held
-- there and still wanted, and leaving room enough.
local function victim_for(newcomer, driver, want)
  local weakest = want.weakest
  if want.slots > 0 or not weakest then return nil end
  if newcomer.rank >= weakest.rank or newcomer.score >= weakest.score then return nil end
  local victim = load_entry(weakest.id)
  if not victim or victim.place ~= 'held' or victim.driver ~= driver or victim.cancelled then return nil end
  if want.kv_tokens and newcomer.tokens > want.kv_tokens + victim.tokens then return nil end
  return victim
end

local function want_of(driver)
  local packed = redis.call('HGET', WANTS, driver)
  return packed and cmsgpack.unpack(packed) or nil
end

local function set_want(driver, want)
  if want.slots > 0 or want.weakest then
    redis.call('HSET', WANTS, driver, cmsgpack.pack(want))
    keep(WANTS)
  else
    redis.call('HDEL', WANTS, driver)
  end
end

-- Wake every driver whose claim would now give it something: the lines have changed.
local function wake_claimants()
  for _, driver in ipairs(redis.call('HKEYS', WANTS)) do
    local want, best = want_of(driver), best_for(driver)
    if best and (has_room(want, best.tokens) or victim_for(best, driver, want)) then wake(driver) end
  end
end
