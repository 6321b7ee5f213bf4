-- KEYS: members, heartbeats, what the member holds. ARGV: incarnation. It stays named as an owner: it did not end in
-- order.
for _, position in ipairs(redis.call('SMEMBERS', KEYS[3])) do
    if redis.call('HGET', position, 'holder') == ARGV[1] then
        redis.call('HDEL', position, 'holder')
    end
end
redis.call('DEL', KEYS[3])
redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('HDEL', KEYS[2], ARGV[1])
return 1
