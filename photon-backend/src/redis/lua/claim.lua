-- KEYS: members, heartbeats, what the caller holds, position. ARGV: incarnation, the holder that may be replaced or
-- nothing, and the heartbeat at which it was seen.
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
    return fail('stranger')
end
local grant = redis.call('HMGET', KEYS[4], 'epoch', 'holder')
local holder = grant[2]
if holder == ARGV[1] then
    return { 'granted', grant[1] }
end
local member = holder and redis.call('HGET', KEYS[1], holder)
if member then
    local beat = redis.call('HGET', KEYS[2], holder) or '0'
    if holder ~= ARGV[2] or beat ~= ARGV[3] then
        return { 'held', holder, member, beat }
    end
end
local epoch = redis.call('HINCRBY', KEYS[4], 'epoch', 1)
-- An owner that is still named did not end its work in order.
local unended = redis.call('HGET', KEYS[4], 'owner')
if unended then
    redis.call('HSET', KEYS[4], 'unended', unended)
else
    redis.call('HDEL', KEYS[4], 'unended')
end
redis.call('HSET', KEYS[4], 'holder', ARGV[1], 'owner', redis.call('HGET', KEYS[1], ARGV[1]))
redis.call('SADD', KEYS[3], KEYS[4])
return { 'granted', num(epoch) }
