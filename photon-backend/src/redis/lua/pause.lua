-- KEYS: subscription. ARGV: `pause` or `resume`, the reason. Returns reason and date that held before.
local known = redis.call('HMGET', KEYS[1], 'mode', 'pause_reason', 'pause_since')
if not known[1] then
    return fail('subscription')
end
if ARGV[1] == 'pause' then
    if known[2] ~= ARGV[2] then
        redis.call('HSET', KEYS[1], 'pause_reason', ARGV[2], 'pause_since', known[3] or num(now()))
        redis.call('HINCRBY', KEYS[1], 'revision', 1)
    end
elseif known[2] then
    redis.call('HDEL', KEYS[1], 'pause_reason', 'pause_since')
    redis.call('HINCRBY', KEYS[1], 'revision', 1)
end
return { known[2], known[3] }
