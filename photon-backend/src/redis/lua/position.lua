-- KEYS: shard, log. ARGV: time.
local state = redis.call('HMGET', KEYS[1], 'seq', 'floor')
if not state[1] then
    return fail('topic')
end
return num(position_at(KEYS[2], tonumber(state[2]), tonumber(state[1]), tonumber(ARGV[1])))
