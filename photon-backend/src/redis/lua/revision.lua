-- How often a subscription was changed. KEYS: topic, subscription, all subscriptions, then its positions. ARGV: name.
-- Who works for it asks every few seconds, also while it has nothing to write: so what is gone is missed while somebody
-- knows it.
if redis.call('HEXISTS', KEYS[1], 'shards') == 0 then
    return fail('topic')
end
local known = redis.call('HMGET', KEYS[2], 'mode', 'forgotten', 'revision')
if not known[1] then
    return known[2] and '0' or fail('subscription')
end
for i = 4, #KEYS do
    if redis.call('HEXISTS', KEYS[i], 'watermark') == 0 then
        return fail('subscription')
    end
end
-- Retention asks there whom it must leave something.
redis.call('SADD', KEYS[3], ARGV[1])
return known[3] or '0'
