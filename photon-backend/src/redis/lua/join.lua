-- KEYS: members, heartbeats. ARGV: incarnation, member. Joining again is the repetition of a call whose answer got
-- lost: the heartbeat never goes back.
if redis.call('HSETNX', KEYS[1], ARGV[1], num(now()) .. ' ' .. ARGV[2]) == 1 then
    redis.call('HSET', KEYS[2], ARGV[1], '1')
end
return 1
