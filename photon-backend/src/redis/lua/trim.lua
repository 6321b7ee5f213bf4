-- Announces a trim, or carries it out. KEYS: shard, log. ARGV: `announce` or `trim`, the place, and how many records
-- at most. Returns whether there is more.
local state = redis.call('HMGET', KEYS[1], 'seq', 'floor', 'announced')
if not state[1] then
    return fail('topic')
end
local through = math.min(tonumber(ARGV[2]), tonumber(state[1]))
if ARGV[1] == 'announce' then
    if through > tonumber(state[3]) then
        redis.call('HSET', KEYS[1], 'announced', num(through))
    end
    return 0
end
local floor = tonumber(state[2])
if through <= floor then
    return 0
end
-- The counter goes on from the place itself, so it must not depend on the entries.
local to = math.min(through, floor + tonumber(ARGV[3]))
redis.call('XTRIM', KEYS[2], 'MINID', num(to + 1))
local first = entry_after(KEYS[2], to)
to = math.min(through, math.max(to, (first or through + 1) - 1))
redis.call('HSET', KEYS[1], 'floor', num(to))
return to < through and 1 or 0
