-- Lines: joining and leaving them, and the order in which a claim looks at them.

local function add(field, number)
  redis.call('HINCRBY', TOTALS, field, number + 0) -- Lua's zero may be negative, and Redis takes no '-0'
end

local function count(entry, sign)
  add('requests', sign)
  add('tokens', sign * entry.tokens)
  add('bytes', sign * entry.bytes)
  add('class:' .. entry.class, sign)
  add('class_tokens:' .. entry.class, sign * entry.tokens)
end

-- Equal scores go by arrival number: Redis orders them by name, so the name begins with it.
local function name_in_line(entry) return digits(entry.number) .. ':' .. entry.id end

local function id_in_line(name) return string.sub(name, 18) end -- after sixteen digits and a colon

-- Among what may be shed, entries are sorted by rank, then as in a line. What was given out before is not among it.
local function name_to_shed(entry) return digits(entry.rank) .. order_name(entry) end

-- Into its lane, or the line of the driver to which a paused sequence stays pinned.
local function join(entry, driver)
  local line = driver and paused_by(driver) or WAITING
  entry.place, entry.driver, entry.victim = driver and 'paused' or 'waiting', driver, nil
  redis.call('ZADD', line, integer(entry.score), name_in_line(entry))
  keep(line)
  if not driver then join_lane(entry) end
  if not driver and entry.may_be_shed and not entry.charged then
    redis.call('ZADD', SHEDDABLE, 0, name_to_shed(entry))
    keep(SHEDDABLE)
  end
  count(entry, 1)
  save(entry)
end

-- Out of wherever it lies.
local function detach(entry)
  if entry.place == 'handed' then
    redis.call('ZREM', handed_by(entry.driver), entry.id)
  elseif entry.place == 'held' then
    redis.call('SREM', held_by(entry.driver), entry.id)
  elseif entry.place == 'paused' then
    redis.call('ZREM', paused_by(entry.driver), name_in_line(entry))
    count(entry, -1)
  else
    redis.call('ZREM', WAITING, name_in_line(entry))
    redis.call('ZREM', SHEDDABLE, name_to_shed(entry))
    leave_lane(entry)
    count(entry, -1)
  end
end

local function drop(entry)
  detach(entry)
  redis.call('HDEL', ENTRIES, entry.id)
  redis.call('HDEL', PAYLOADS, entry.id)
end

-- Remember for a while how an entry answered, how it ended, and what it had shed.
local function mark(id, answer, ending, shed)
  local packed = cmsgpack.pack({answer = answer, ending = ending, shed = shed})
  redis.call('SET', mark_of(id), packed, 'PX', MARK_TTL_MS)
end

local function load_mark(id)
  local packed = redis.call('GET', mark_of(id))
  return packed and cmsgpack.unpack(packed) or nil
end

-- Drop it and leave a mark. `ending` is 'settled', 'withdrawn', 'shed' or 'lost'.
local function finish(entry, ending)
  drop(entry)
  mark(entry.id, entry.answer, ending, entry.shed)
end

-- From a driver back into a line, unless nobody wants it any more.
local function put_back(entry, driver)
  if entry.cancelled then return finish(entry, 'withdrawn') end
  detach(entry)
  join(entry, driver)
end

local function walk_paused(driver)
  local index = -1
  return function()
    index = index + 1
    local name = redis.call('ZRANGE', paused_by(driver), index, index)[1]
    return name and load_entry(id_in_line(name)) or nil
  end
end

local function goes_before(entry, other)
  if entry.score ~= other.score then return entry.score < other.score end
  return entry.number < other.number
end

-- A walk whose steps are kept on a tape, for the next one: as long as the lines do not change. Without tapes a plain one.
local function walk_on_tape(tapes, key, new_walk, argument)
  if not tapes then return new_walk(argument) end
  local tape, at = tapes[key] or {walk = new_walk(argument)}, 0
  tapes[key] = tape
  return function()
    at = at + 1
    if tape[at] == nil then tape[at] = tape.walk() or false end
    return tape[at] or nil
  end
end

-- What a claim of this driver looks at, one entry a call. Of what comes next in each lane, and in the driver's own line,
-- the best score goes first: its own score, so that an old entry of an account that must wait does not lend its age to
-- others. What is assumed to be given out is left out. With `classes` (a table by name) the lanes of all others are left out;
-- what all classes share may still bring entries of others.
local function walk_for(driver, assumed, classes)
  local walks = {walk_on_tape(assumed.tapes, 'driver:' .. driver, walk_paused, driver)}
  for _, lane in ipairs(redis.call('HKEYS', LANES)) do
    if not classes or classes[lane] or lane == COMMON_LANE then
      walks[#walks + 1] = walk_on_tape(assumed.tapes, 'lane:' .. lane, walk_lane, lane)
    end
  end
  local fronts = {}
  local function advance(index)
    repeat fronts[index] = walks[index]() or false until not fronts[index] or not assumed.given[fronts[index].id]
  end
  for index in ipairs(walks) do advance(index) end
  return function()
    local best
    for index, front in ipairs(fronts) do
      if front and (not best or goes_before(front, fronts[best])) then best = index end
    end
    if not best then return nil end
    local entry = fronts[best]
    advance(best)
    return entry
  end
end
