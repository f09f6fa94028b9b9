-- offer: hand an entry to a standing want, or queue it within the bounds, or say which bound is full.
-- KEYS 15: those of admission/keys.py, in its order
-- ARGV: clock, passes, id, class, rank, 'head start' or 'fixed', the head start (us) or the score, lane, account, tokens,
--   tenant, payload, then the bounds on requests, tokens and bytes ('' for none)
-- Result: {outcome, entries in lanes with a better score, requests that wait, tokens that wait}; outcome is 'handed',
--   'queued', 'queue_full', 'queue_tokens_full', or 'withdrawn' when a withdrawal came first. An id that is known answers
--   what it answered before.

local id, tokens, payload = ARGV[3], tonumber(ARGV[10]), ARGV[12]

local function answer(outcome)
  local entry = load_entry(id)
  local ahead = entry and entry.place == 'waiting' and redis.call('ZRANK', WAITING, name_in_line(entry)) or 0
  return {outcome, integer(ahead), integer(total('requests')), integer(total('tokens'))}
end

local function full()
  local max_requests, max_tokens, max_bytes = tonumber(ARGV[13]), tonumber(ARGV[14]), tonumber(ARGV[15])
  if max_requests and total('requests') + 1 > max_requests then return 'queue_full' end
  if max_tokens and total('tokens') + tokens > max_tokens then return 'queue_tokens_full' end
  if max_bytes and total('bytes') + #payload > max_bytes then return 'queue_full' end
  return nil
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

local known = load_entry(id)
if known then return answer(known.answer) end
local mark = redis.call('GET', mark_of(id))
if mark then return answer(string.match(mark, '^(.*):')) end

local now = now_us()
local wants, refusal = wants_with_room(now), full()
if refusal and not next(wants) then return answer(refusal) end -- at once: under overload this is the usual case

local is_fixed, given = ARGV[6] == 'fixed', tonumber(ARGV[7])
local entry = {
  id = id, number = next_number(), class = ARGV[4], rank = tonumber(ARGV[5]), arrival = now, passes = 0,
  is_fixed = is_fixed, score = is_fixed and given or now - given, lane = ARGV[8], account = ARGV[9], tokens = tokens,
  tenant = ARGV[11], bytes = #payload, answer = 'queued',
}
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
end
wake_claimants()
renew()
return answer(driver and 'handed' or 'queued')
