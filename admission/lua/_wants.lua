-- Wants: what a driver asked for, and what it is given next.

local function has_room(want, tokens)
  return want.slots > 0 and (not want.kv_tokens or tokens <= want.kv_tokens)
end

-- A slot is taken, with room for `tokens`, by an entry of `class`.
local function take_room(want, tokens, class)
  want.slots = math.max(0, want.slots - 1)
  want.kv_tokens = want.kv_tokens and want.kv_tokens - tokens
  local shortage = (want.short[class] or 0) - 1
  want.short[class] = shortage > 0 and shortage or nil
end

-- The sequence that `newcomer`, which has no room, may displace: of a worse class and of a worse score, held by the driver
-- and still wanted, and returning enough.
local function victim_for(newcomer, driver, want)
  local weakest = want.weakest
  if not weakest or not newcomer.preempts or newcomer.rank >= weakest.rank or newcomer.score >= weakest.score then return nil end
  local victim = load_entry(weakest.id)
  if not victim or victim.place ~= 'held' or victim.driver ~= driver or victim.cancelled then return nil end
  if want.kv_tokens and newcomer.tokens > want.kv_tokens + victim.tokens then return nil end
  return victim
end

-- How often others went ahead of the entry, with what is assumed.
local function passes_of(entry, assumed) return entry.passes + (assumed.passes[entry.id] or 0) end

-- Nothing is assumed to be given out already (as an offer does with a group: see offer.lua).
local NOTHING = {given = {}, passes = {}}

-- The first entry that has room, or the very first in exchange; of `classes` only, if given.
local function first(driver, want, assumed, classes)
  local walk, passed = walk_for(driver, assumed, classes), {}
  for _ = 1, LOOK_AHEAD do
    local entry = walk()
    if not entry then return nil end
    if not classes or classes[entry.class] then
      if has_room(want, entry.tokens) then return {entry = entry, passed = passed} end
      local victim = #passed == 0 and victim_for(entry, driver, want)
      if victim then return {entry = entry, passed = passed, victim = victim} end
      if want.slots == 0 or passes_of(entry, assumed) >= MAX_PASSES then return nil end
      passed[#passed + 1] = entry
    end
  end
  return nil
end

-- The first of the classes that are short of slots. When it leaves no room for the head of all, that counts as a pass, and
-- after so many passes nothing goes ahead of the head: no share may keep it from memory for ever.
local function first_short(driver, want, assumed)
  local choice, head = first(driver, want, assumed, want.short), walk_for(driver, assumed)()
  if not choice or choice.victim or want.slots == 0 or not want.kv_tokens then return choice end
  if head.id == choice.entry.id or head.tokens <= want.kv_tokens - choice.entry.tokens then return choice end
  for _, passed in ipairs(choice.passed) do
    if passed.id == head.id then return choice end
  end
  if passes_of(head, assumed) >= MAX_PASSES then return nil end
  table.insert(choice.passed, 1, head)
  return choice
end

-- What a claim of the driver would be given next: {entry, the entries passed over, the victim of an exchange}; nil for
-- nothing. Classes that are short of slots come first.
local function choose(driver, want, assumed)
  if want.slots == 0 and not want.weakest then return nil end
  return next(want.short) and first_short(driver, want, assumed) or first(driver, want, assumed)
end

-- Give the driver what was chosen for it. A victim goes into its line.
local function give(choice, driver)
  for _, passed in ipairs(choice.passed) do
    passed.passes = passed.passes + 1
    save(passed)
  end
  local entry, victim = choice.entry, choice.victim
  if not entry.charged then charge(entry) end
  detach(entry)
  entry.place, entry.driver, entry.victim, entry.passes = 'handed', driver, victim and victim.id or nil, 0
  redis.call('ZADD', handed_by(driver), next_number(), entry.id)
  keep(handed_by(driver))
  save(entry)
  if victim then put_back(victim, driver) end
end

-- What was chosen for the driver is taken off what it wants.
local function take(want, choice)
  take_room(want, choice.entry.tokens, choice.entry.class)
  if choice.victim then want.slots, want.weakest = 0, nil end -- what room is left, the driver must say
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
  if total('requests') == 0 then return end
  for _, driver in ipairs(redis.call('HKEYS', WANTS)) do
    if not is_woken(driver) and choose(driver, want_of(driver), NOTHING) then wake(driver) end
  end
end
