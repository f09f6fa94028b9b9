-- withdraw: nobody wants this entry any more. One that a driver has is only marked: it never goes back into a line.
-- KEYS 16: those of admission/keys.py, in its order
-- ARGV: clock, passes, id
-- Result: {'withdrawn' or 'claimed' or 'unknown', the driver that holds the sequence or ''}. An unknown id is remembered
--   for a while, so that an offer which was on its way finds that it came too late.

local id = ARGV[3]

renew()
local entry = load_entry(id)
if not entry then
  local known = load_mark(id)
  if not known then mark(id, 'withdrawn', 'unknown', {}) end
  return {known and known.ending == 'withdrawn' and 'withdrawn' or 'unknown', ''}
end
local driver = entry.driver or ''
if is_in_line(entry) then
  finish(entry, 'withdrawn')
  wake_claimants()
  return {'withdrawn', driver}
end
entry.cancelled = true
save(entry)
return {'claimed', driver}
