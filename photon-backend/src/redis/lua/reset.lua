-- KEYS: shard, position, subscription, then the rows. ARGV: 4 (where the rows are), the place, epoch and token of the
-- owner or nothing.
local state = redis.call('HMGET', KEYS[1], 'seq', 'floor', 'announced')
if not state[1] then
    return fail('topic')
end
local position = redis.call('HMGET', KEYS[2], 'epoch', 'holder', 'watermark')
if not position[3] or redis.call('HEXISTS', KEYS[3], 'mode') == 0 then
    return fail('subscription')
end
if ARGV[3] ~= '' and (position[1] ~= ARGV[3] or position[2] ~= ARGV[4]) then
    return { 'fenced' }
end
local start = math.max(tonumber(state[2]), tonumber(state[3]))
local after = math.min(math.max(tonumber(ARGV[2]), start), tonumber(state[1]))
redis.call('HDEL', KEYS[2], 'holder', 'owner', 'trials')
redis.call('HSET', KEYS[2], 'watermark', num(after), 'ranges', '')
redis.call('HINCRBY', KEYS[2], 'resets', 1)
redis.call('HINCRBY', KEYS[3], 'revision', 1)
local removed = 0
for _, index in ipairs({ DEAD, PARKED }) do
    for _, seq in ipairs(redis.call('ZRANGEBYSCORE', index, '(' .. num(after), '+inf')) do
        drop(seq, redis.call('HGET', ROWS, seq))
        removed = removed + 1
    end
end
redis.call('ZREMRANGEBYSCORE', MARKS, '(' .. num(after), '+inf')
return { 'reset', num(after), num(removed) }
