-- What the acts share: entries and where they lie. The loader puts the parts before each act, after the constants.
--
-- KEYS are the same for every act (admission/keys.py has the reason for each). ARGV[1] is the clock of a test in
-- microseconds, '' for Redis's own; ARGV[2] is how often an entry may be passed over. Every act is all or nothing, also
-- when Redis is out of memory: it refuses only the first write of a script. So an offer begins with a write that asks for
-- memory, and may be refused before it changed anything; every other act begins with one that does not, and then always
-- runs to its end.
--
-- An entry lies in exactly one place: in a line ('waiting': one that all drivers share, 'paused': its driver's own), where
-- it counts towards the bounds, or with a driver ('handed': receipt not yet known, 'held': received), where it does not.

local ENTRIES, PAYLOADS, WAITING, LINES, LANES, SHEDDABLE, TOTALS, WANTS, BEATS = unpack(KEYS, 1, 9)
local MAX_PASSES = tonumber(ARGV[2])

local function turns_in(lane) return KEYS[10] .. lane end
local function idle_in(lane) return KEYS[11] .. lane end
local function handed_by(driver) return KEYS[12] .. driver end
local function held_by(driver) return KEYS[13] .. driver end
local function paused_by(driver) return KEYS[14] .. driver end
local function inbox_of(driver) return KEYS[15] .. driver end
local function mark_of(id) return KEYS[16] .. id end

local function integer(number) return string.format('%.0f', number) end -- tostring() would round microseconds

local function digits(number) return string.format('%016.0f', number) end -- so that names sort as numbers do

local wall = tonumber(ARGV[1]) -- read once: an act takes place at one moment

local function wall_us()
  if not wall then
    local time = redis.call('TIME')
    wall = time[1] * 1000000 + time[2]
  end
  return wall
end

-- The queue's own clock. It never goes back: when the wall clock was set back since the last entry came, this one goes on
-- from there, and stays as far ahead.
local function now_us()
  local clock = redis.call('HMGET', TOTALS, 'ahead_us', 'last_us')
  return math.max(wall_us() + tonumber(clock[1] or 0), tonumber(clock[2] or 0))
end

local function keep(key) redis.call('PEXPIRE', key, QUEUE_TTL_MS) end

local function renew()
  for index = 1, 9 do keep(KEYS[index]) end
  for _, lane in ipairs(redis.call('HKEYS', LANES)) do
    keep(turns_in(lane))
    keep(idle_in(lane))
  end
end

-- An entry comes at this moment of the queue's own clock: nothing that comes later is older.
local function come(now)
  redis.call('HSET', TOTALS, 'ahead_us', integer(now - wall_us()), 'last_us', integer(now))
end

local function total(field) return tonumber(redis.call('HGET', TOTALS, field) or 0) end

-- Acts are numbered. One that changed nothing has the number of the last that did: it needs no memory to say so. The first
-- has the time as its number, in microseconds: so numbers go on above the old ones after Redis has lost its data.
local is_change = true

local function act_number()
  if not is_change then return integer(total('last_act')) end
  local number = redis.call('HINCRBY', TOTALS, 'last_act', 1)
  if number > 1 then return integer(number) end
  redis.call('HSET', TOTALS, 'last_act', integer(wall_us()))
  keep(TOTALS)
  return integer(wall_us())
end

local function next_number() return redis.call('HINCRBY', TOTALS, 'last_number', 1) end

local function load_entry(id)
  local packed = redis.call('HGET', ENTRIES, id)
  return packed and cmsgpack.unpack(packed) or nil
end

local function save(entry) redis.call('HSET', ENTRIES, entry.id, cmsgpack.pack(entry)) end

local function is_in_line(entry) return entry.place == 'waiting' or entry.place == 'paused' end
