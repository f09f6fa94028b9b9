-- offer: put a group of entries of one class into the queue, all or none. What of it meets standing wants is handed over; the
--   rest is queued within the bounds, shedding others if need be; or it is said which bound is full.
-- KEYS 16: those of admission/keys.py, in its order
-- ARGV: clock, passes, the queue's bounds on requests, tokens and bytes ('' for none), of the class the bounds on requests
--   and tokens, 'sheds' or '', 'may be shed' or '', 'preempts' or ''; then of each entry id, class, rank, 'head start' or
--   'fixed', the head start (us) or the score, lane, account, tokens, tenant, origin, payload
-- Result: {entries in lanes with a better score than the first of the group that waits, requests that wait, tokens that wait,
--   the outcome of each entry, then id and origin of each entry that was shed}; an outcome is 'handed', 'queued', 'shed' when
--   it was displaced since, or for all alike 'queue_full', 'queue_tokens_full' or 'class_full'. When one of the ids is known,
--   the group was offered before, or a withdrawal came first: each answers what it answered before, else 'withdrawn'.

local FIRST, NUM_FIELDS = 11, 11

local bounds = {requests = tonumber(ARGV[3]), tokens = tonumber(ARGV[4]), bytes = tonumber(ARGV[5])}
local rule = {requests = tonumber(ARGV[6]), tokens = tonumber(ARGV[7]), sheds = ARGV[8] ~= ''}

local now = now_us()
local group, of_group = {}, {}
for at = FIRST, #ARGV, NUM_FIELDS do
  local is_fixed, given = ARGV[at + 3] == 'fixed', tonumber(ARGV[at + 4])
  local entry = {
    id = ARGV[at], class = ARGV[at + 1], rank = tonumber(ARGV[at + 2]), arrival = now, passes = 0, is_fixed = is_fixed,
    score = is_fixed and given or now - given, lane = ARGV[at + 5], account = ARGV[at + 6], tokens = tonumber(ARGV[at + 7]),
    tenant = ARGV[at + 8], origin = ARGV[at + 9], bytes = #ARGV[at + 10], answer = 'queued', may_be_shed = ARGV[9] ~= '',
    preempts = ARGV[10] ~= '', shed = {},
    charged = not bounds.requests, -- past the bounds comes what had started, under another id
  }
  group[#group + 1], of_group[entry.id] = entry, true
end
local class, rank = group[1].class, group[1].rank

local function answer(outcomes, shed)
  local ahead = 0
  for index, entry in ipairs(group) do
    local may_wait = outcomes[index] == 'queued' or outcomes[index] == 'handed'
    local known = may_wait and load_entry(entry.id)
    if known and known.place == 'waiting' then
      ahead = redis.call('ZRANK', WAITING, name_in_line(known))
      break
    end
  end
  local reply = {integer(ahead), integer(total('requests')), integer(total('tokens'))}
  for _, outcome in ipairs(outcomes) do reply[#reply + 1] = outcome end
  for _, name in ipairs(shed) do reply[#reply + 1] = name end
  return reply
end

local function answer_all(outcome)
  local outcomes = {}
  for index in ipairs(group) do outcomes[index] = outcome end
  return answer(outcomes, {})
end

-- What the group answered before; nil when none of it is known.
local function answer_known()
  local outcomes, is_known, shed = {}, false, {}
  for index, entry in ipairs(group) do
    local known = load_entry(entry.id) or load_mark(entry.id)
    is_known = is_known or known
    outcomes[index] = known and known.answer or 'withdrawn'
    if index == 1 and known then shed = known.shed end
  end
  return is_known and answer(outcomes, shed)
end

-- The live wants that have room for the least entry of the group, by driver.
local function wants_with_room()
  local wants, least = {}, math.huge
  for _, entry in ipairs(group) do least = math.min(least, entry.tokens) end
  for _, driver in ipairs(redis.call('HKEYS', WANTS)) do
    local want = want_of(driver)
    if want.expires > now and has_room(want, least) then wants[driver] = want end
  end
  return wants
end

local function with_most_slots(wants)
  local best
  for driver, want in pairs(wants) do
    local more = best and want.slots - wants[best].slots
    if not best or more > 0 or (more == 0 and driver < best) then best = driver end
  end
  return best
end

-- Who would now be given what of the group, which has joined the lines: rows of {driver, choice}. As admission/handing.py.
local function hand_over(wants)
  local rows, assumed, driver = {}, {given = {}, passes = {}, tapes = {}}, with_most_slots(wants)
  while driver and #rows < #group do
    local want = wants[driver]
    local choice = want.slots > 0 and choose(driver, want, assumed)
    if choice and of_group[choice.entry.id] and not choice.victim then
      rows[#rows + 1] = {driver = driver, want = want, choice = choice}
      assumed.given[choice.entry.id] = true
      for _, passed in ipairs(choice.passed) do
        assumed.passes[passed.id] = (assumed.passes[passed.id] or 0) + 1
      end
      take(want, choice)
    else
      wants[driver] = nil
      driver = with_most_slots(wants)
    end
  end
  return rows, assumed.given
end

local known = answer_known()
if known then
  is_change = false
  return known
end

local wants, to_shed, refusal = wants_with_room(), {}, nil
local has_takers = next(wants) ~= nil
if not has_takers then
  to_shed, refusal = room_for(class, rank, sums_of(group, 1), bounds, rule)
  if refusal then -- at once: under overload this is the usual case
    is_change = false
    return answer_all(refusal)
  end
end

for index, entry in ipairs(group) do
  entry.number = next_number()
  if index == 1 then come(now) end
  join(entry)
end
local rows, handed = {}, {}
if has_takers then
  rows, handed = hand_over(wants)
  local leaving = {}
  for _, row in ipairs(rows) do leaving[#leaving + 1] = row.choice.entry end
  if #leaving < #group then to_shed, refusal = room_for(class, rank, sums_of(leaving, -1), bounds, rule) end
  if refusal then
    for _, entry in ipairs(group) do drop(entry) end
    renew()
    return answer_all(refusal)
  end
end

local outcomes = {}
for index, entry in ipairs(group) do
  redis.call('HSET', PAYLOADS, entry.id, ARGV[FIRST + (index - 1) * NUM_FIELDS + 10])
  outcomes[index] = handed[entry.id] and 'handed' or 'queued'
end
for _, row in ipairs(rows) do
  row.choice.entry.answer = 'handed'
  give(row.choice, row.driver)
  set_want(row.driver, row.want)
  wake(row.driver)
end
local shed = {}
for _, other in ipairs(to_shed) do
  other.answer = 'shed'
  finish(other, 'shed')
  shed[#shed + 1] = other.id
  shed[#shed + 1] = other.origin
end
if #shed > 0 then
  local first = load_entry(group[1].id)
  first.shed = shed
  save(first)
end
wake_claimants()
renew()
return answer(outcomes, shed)
