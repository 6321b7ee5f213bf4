-- KEYS: subscription, all subscriptions, then position, rows and their indexes of each shard. ARGV: name.
if redis.call('EXISTS', KEYS[1]) == 1 then
    redis.call('DEL', KEYS[1])
    -- So that who still works for it does not take it for lost.
    redis.call('HSET', KEYS[1], 'forgotten', '1')
end
redis.call('SREM', KEYS[2], ARGV[1])
for i = 3, #KEYS, 7 do
    -- The epoch stays.
    redis.call('HDEL', KEYS[i], 'holder', 'owner', 'unended', 'trials', 'start', 'watermark', 'ranges', 'resets', 'active')
    redis.call('DEL', KEYS[i + 1], KEYS[i + 2], KEYS[i + 3], KEYS[i + 4], KEYS[i + 5], KEYS[i + 6])
end
return 1
