-- offer: hand an entry to a standing want, or queue it within the bounds, shedding others if need be, or say which bound is
--   full.
-- KEYS 16: those of admission/keys.py, in its order
-- ARGV: clock, passes, id, class, rank, 'head start' or 'fixed', the head start (us) or the score, lane, account, tokens,
--   tenant, origin, payload, then the queue's bounds on requests, tokens and bytes ('' for none), then of its class the
--   bounds on requests and tokens, 'sheds' or '', 'may be shed' or '', 'preempts' or ''
-- Result: {outcome, entries in lanes with a better score, requests that wait, tokens that wait, then id and origin of each
--   entry that was shed}; outcome is 'handed', 'queued', 'queue_full', 'queue_tokens_full', 'class_full', 'shed' when it
--   was displaced since, or 'withdrawn' when a withdrawal came first. An id that is known answers what it answered before.

local id, tokens, payload = ARGV[3], tonumber(ARGV[10]), ARGV[13]
local bounds = {requests = tonumber(ARGV[14]), tokens = tonumber(ARGV[15]), bytes = tonumber(ARGV[16])}
local rule = {requests = tonumber(ARGV[17]), tokens = tonumber(ARGV[18]), sheds = ARGV[19] ~= ''}

local function answer(outcome, shed)
  local entry = load_entry(id)
  local ahead = entry and entry.place == 'waiting' and redis.call('ZRANK', WAITING, name_in_line(entry)) or 0
  return {outcome, integer(ahead), integer(total('requests')), integer(total('tokens')), unpack(shed or {})}
end

-- The live wants that have room for this entry, by driver.
local function wants_with_room(now)
  local wants = {}
  for _, driver in ipairs(redis.call('HKEYS', WANTS)) do
    local want = want_of(driver)
    if want.expires > now and has_room(want, tokens) then wants[driver] = want end
  end
  return wants
end

-- Of the drivers that would now be given this very entry, the one with most free slots; and the choice for it.
local function taker(wants)
  local taking, best
  for driver, want in pairs(wants) do
    local better = not taking or want.slots > wants[taking].slots
      or (want.slots == wants[taking].slots and driver < taking)
    local choice = better and choose(driver, want)
    if choice and choice.entry.id == id then taking, best = driver, choice end
  end
  return taking, best
end

local known = load_entry(id) or load_mark(id)
if known then return answer(known.answer, known.shed) end

local now = now_us()
local is_fixed, given = ARGV[6] == 'fixed', tonumber(ARGV[7])
local entry = {
  id = id, class = ARGV[4], rank = tonumber(ARGV[5]), arrival = now, passes = 0, is_fixed = is_fixed,
  score = is_fixed and given or now - given, lane = ARGV[8], account = ARGV[9], tokens = tokens, tenant = ARGV[11],
  origin = ARGV[12], bytes = #payload, answer = 'queued', may_be_shed = ARGV[20] ~= '',
  preempts = ARGV[21] ~= '', shed = {},
  charged = not bounds.requests, -- past the bounds comes what had started, under another id
}
local wants, to_shed, refusal = wants_with_room(now), room_for(entry, bounds, rule)
if refusal and not next(wants) then return answer(refusal) end -- at once: under overload this is the usual case

entry.number = next_number()
come(now)
join(entry)
local driver, choice = taker(wants)
if not driver and refusal then
  drop(entry)
  renew()
  return answer(refusal)
end
redis.call('HSET', PAYLOADS, id, payload)
if driver then
  choice.entry.answer = 'handed'
  give(choice, driver, wants[driver])
  set_want(driver, wants[driver])
  wake(driver)
elseif #to_shed > 0 then
  for _, other in ipairs(to_shed) do
    other.answer = 'shed'
    finish(other, 'shed')
    entry.shed[#entry.shed + 1] = other.id
    entry.shed[#entry.shed + 1] = other.origin
  end
  save(entry)
end
wake_claimants()
renew()
return answer(driver and 'handed' or 'queued', entry.shed)
