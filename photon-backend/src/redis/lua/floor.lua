-- A reader found nothing where something was: tells the floor, raised if the beginning of the log was removed by
-- another program. KEYS: shard, log. ARGV: where the reader stands.
local state = redis.call('HMGET', KEYS[1], 'seq', 'floor', 'jump_from', 'jump_to')
if not state[1] then
    return fail('topic')
end
local last, floor, after = tonumber(state[1]), tonumber(state[2]), tonumber(ARGV[1])
local first = entry_after(KEYS[2], 0)
local gone = first and math.min(first - 1, last) or last
local jumped = state[3] and tonumber(state[3]) <= after and gone <= tonumber(state[4])
if gone <= floor or jumped then
    return { num(floor), 0 }
end
redis.call('HSET', KEYS[1], 'floor', num(gone))
return { num(gone), 1 }
