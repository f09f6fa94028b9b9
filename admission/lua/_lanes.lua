-- Lanes: a line per account, and whose turn it is. The rule, its reasons and its sources are in admission/lanes.py.
--
-- One sorted set holds the lines of all accounts, sorted by name: lane, account, score, number, id. So an account has no
-- key of its own that could be left behind. Per lane, TURNS has the accounts that wait by what they were given, equal ones
-- by the number of what stands first in their line; IDLE those that do not wait and are ahead of the lane's virtual time.

local function virtual_time(lane) return tonumber(redis.call('HGET', LANES, lane) or 0) end

-- How the names of a line begin. With the lengths, no line's name is the beginning of another's.
local function line_name(lane, account)
  return #lane .. ':' .. lane .. #account .. ':' .. account
end

-- Score, number and id as a name: names sort as scores do, negative ones too.
local function order_name(entry)
  local score = entry.score < 0 and '0' .. digits(2 ^ 53 + entry.score) or '1' .. digits(entry.score)
  return score .. digits(entry.number) .. ':' .. entry.id
end

local function name_in_lane(entry) return line_name(entry.lane, entry.account) .. order_name(entry) end

-- The entry at `index` of a line: its id, and its number in digits.
local function at_in_line(line, index)
  local name = redis.call('ZRANGEBYLEX', LINES, '[' .. line, '(' .. line .. '\255', 'LIMIT', index, 1)[1]
  if not name then return nil end
  return string.sub(name, #line + 35), string.sub(name, #line + 18, #line + 33)
end

local function turn_of(number, account) return number .. ':' .. account end

local function account_of(turn) return string.sub(turn, 18) end -- after sixteen digits and a colon

-- What is first in a line has changed, from `before` (a number in digits, nil for an empty line).
local function renew_turn(entry, before)
  local lane, account = entry.lane, entry.account
  local _, after = at_in_line(line_name(lane, account), 0)
  if before == after then return end
  local turns, idle, served = turns_in(lane), idle_in(lane), nil
  if before then
    served = redis.call('ZSCORE', turns, turn_of(before, account))
    redis.call('ZREM', turns, turn_of(before, account))
  else
    served = math.max(tonumber(redis.call('ZSCORE', idle, account) or 0), virtual_time(lane))
    redis.call('ZREM', idle, account)
  end
  if after then
    redis.call('ZADD', turns, served, turn_of(after, account))
    keep(turns)
  elseif tonumber(served) > virtual_time(lane) then
    redis.call('ZADD', idle, served, account)
    keep(idle)
  end
end

local function join_lane(entry)
  local _, before = at_in_line(line_name(entry.lane, entry.account), 0)
  redis.call('HSETNX', LANES, entry.lane, 0)
  redis.call('ZADD', LINES, 0, name_in_lane(entry))
  keep(LANES)
  keep(LINES)
  renew_turn(entry, before)
end

local function leave_lane(entry)
  local _, before = at_in_line(line_name(entry.lane, entry.account), 0)
  redis.call('ZREM', LINES, name_in_lane(entry))
  renew_turn(entry, before)
end

-- The entry, which is in its lane, is about to be given out for the first time.
local function charge(entry)
  local lane, turns = entry.lane, turns_in(entry.lane)
  local _, first = at_in_line(line_name(lane, entry.account), 0)
  local served = tonumber(redis.call('ZSCORE', turns, turn_of(first, entry.account))) + entry.tokens
  local now, share = virtual_time(lane), math.ceil(entry.tokens / redis.call('ZCARD', turns))
  now = math.max(now, math.min(now + share, served))
  redis.call('ZADD', turns, integer(served), turn_of(first, entry.account))
  redis.call('HSET', LANES, lane, integer(now))
  redis.call('ZREMRANGEBYSCORE', idle_in(lane), '-inf', integer(now))
  entry.charged = true
end

-- The entries of a lane, one a call: the line of the account whose turn it is, then the next account's.
local function walk_lane(lane)
  local turn, line, index = 0, nil, 0
  return function()
    local id = line and at_in_line(line, index)
    if not id then
      local next_turn = redis.call('ZRANGE', turns_in(lane), turn, turn)[1]
      if not next_turn then return nil end
      line, turn, index = line_name(lane, account_of(next_turn)), turn + 1, 0
      id = at_in_line(line, index)
    end
    index = index + 1
    return load_entry(id)
  end
end
