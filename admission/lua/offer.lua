-- offer: hand an entry to a standing want, or queue it within the bounds, or say which bound is full.
-- KEYS 11: those of admission/keys.py, in its order
-- ARGV: clock, id, class, rank, head start (us), tokens, tenant, payload, then the bounds on requests, tokens and
--   bytes ('' for none)
-- Result: {outcome, entries ahead in the shared line, requests that wait, tokens that wait}; outcome is 'handed', 'queued',
--   'queue_full', 'queue_tokens_full', or 'withdrawn' when a withdrawal came first. An id that is known answers what it
--   answered before.

local id, tokens, payload = ARGV[2], tonumber(ARGV[6]), ARGV[8]

local function answer(outcome)
  local entry = load_entry(id)
  local ahead = entry and entry.place == 'waiting' and redis.call('ZRANK', WAITING, name_in_line(entry)) or 0
  return {outcome, integer(ahead), integer(total('requests')), integer(total('tokens'))}
end

-- The driver with most free slots among those whose want is alive and that would take this entry before all that waits.
local function taker(score, now)
  local chosen, most
  for _, driver in ipairs(redis.call('HKEYS', WANTS)) do
    local want = want_of(driver)
    if want.expires > now and has_room(want, tokens) then
      local best = best_for(driver)
      local better = not chosen or want.slots > most or (want.slots == most and driver < chosen)
      if better and (not best or score < best.score) then chosen, most = driver, want.slots end
    end
  end
  return chosen
end

local function full()
  local max_requests, max_tokens, max_bytes = tonumber(ARGV[9]), tonumber(ARGV[10]), tonumber(ARGV[11])
  if total('requests') + 1 > max_requests then return 'queue_full' end
  if max_tokens and total('tokens') + tokens > max_tokens then return 'queue_tokens_full' end
  if max_bytes and total('bytes') + #payload > max_bytes then return 'queue_full' end
  return nil
end

local known = load_entry(id)
if known then return answer(known.answer) end
local mark = redis.call('GET', mark_of(id))
if mark then return answer(string.match(mark, '^(.*):')) end

local now = now_us()
local score = now - tonumber(ARGV[5])
local driver = taker(score, now)
local refusal = not driver and full()
if refusal then return answer(refusal) end

local entry = {
  id = id, class = ARGV[3], rank = tonumber(ARGV[4]), tokens = tokens, tenant = ARGV[7], bytes = #payload,
  arrival = now, score = score, number = next_number(), answer = driver and 'handed' or 'queued',
}
redis.call('HSET', PAYLOADS, id, payload)
if driver then
  local want = want_of(driver)
  want.slots = want.slots - 1
  want.kv_tokens = want.kv_tokens and want.kv_tokens - tokens
  set_want(driver, want)
  give(entry, driver)
  wake(driver)
else
  join(entry)
  wake_claimants()
end
renew()
return answer(entry.answer)
