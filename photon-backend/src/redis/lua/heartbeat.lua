-- KEYS: members, heartbeats. ARGV: incarnation.
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
    return fail('stranger')
end
return redis.call('HINCRBY', KEYS[2], ARGV[1], 1)
