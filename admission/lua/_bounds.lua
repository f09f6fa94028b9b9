-- Bounds: whether the queue has room for a group of entries, and what would have to be shed for it.

-- What is over its bound once so much more waits in requests, tokens and bytes (or less); nil when there is room.
local function over(bounds, requests, tokens, bytes)
  if bounds.requests and total('requests') + requests > bounds.requests then return 'queue_full' end
  if bounds.tokens and total('tokens') + tokens > bounds.tokens then return 'queue_tokens_full' end
  if bounds.bytes and total('bytes') + bytes > bounds.bytes then return 'queue_full' end
  return nil
end

local function class_is_full(class, more, rule)
  if rule.requests and total('class:' .. class) + more.requests > rule.requests then return true end
  return rule.tokens and total('class_tokens:' .. class) + more.tokens > rule.tokens
end

-- What may be shed for an entry of this rank, the worst score first, one a call. Each rank is looked at from its end.
local function walk_sheddable(rank)
  local above, top, ends = '(' .. digits(rank) .. '\255', '+', {}
  local name = redis.call('ZREVRANGEBYLEX', SHEDDABLE, top, above, 'LIMIT', 0, 1)[1]
  while name do
    top = '(' .. string.sub(name, 1, 16)
    ends[#ends + 1] = {from = '[' .. name, down_to = top, order = string.sub(name, 17)}
    name = redis.call('ZREVRANGEBYLEX', SHEDDABLE, top, above, 'LIMIT', 0, 1)[1]
  end
  return function()
    local worst
    for _, at in ipairs(ends) do
      if at.order and (not worst or at.order > worst.order) then worst = at end
    end
    if not worst then return nil end
    local entry = load_entry(string.sub(worst.order, 35)) -- after the score, the number and a colon
    local found = redis.call('ZREVRANGEBYLEX', SHEDDABLE, worst.from, worst.down_to, 'LIMIT', 1, 1)[1]
    worst.from, worst.order = found and '[' .. found, found and string.sub(found, 17)
    return entry
  end
end

-- What these entries come to in requests, tokens and bytes, `sign` times.
local function sums_of(entries, sign)
  local sums = {requests = sign * #entries, tokens = 0, bytes = 0}
  for _, entry in ipairs(entries) do
    sums.tokens = sums.tokens + sign * entry.tokens
    sums.bytes = sums.bytes + sign * entry.bytes
  end
  return sums
end

-- The entries to shed so that `more` of the class may wait; or nil, and which bound is full.
local function room_for(class, rank, more, bounds, rule)
  if class_is_full(class, more, rule) then return nil, 'class_full' end
  local refusal = over(bounds, more.requests, more.tokens, more.bytes)
  if not refusal then return {} end
  local requests, tokens, bytes, shed = more.requests, more.tokens, more.bytes, {}
  local walk = rule.sheds and walk_sheddable(rank)
  while walk and #shed < MAX_SHED do
    local other = walk()
    if not other then break end
    shed[#shed + 1] = other
    requests, tokens, bytes = requests - 1, tokens - other.tokens, bytes - other.bytes
    if not over(bounds, requests, tokens, bytes) then return shed end
  end
  return nil, refusal
end
