-- KEYS: what the caller holds, then positions. ARGV: incarnation.
for i = 2, #KEYS do
    if redis.call('HGET', KEYS[i], 'holder') == ARGV[1] then
        redis.call('HDEL', KEYS[i], 'holder', 'owner')
    end
    redis.call('SREM', KEYS[1], KEYS[i])
end
return 1
