-- Makes a subscription known. KEYS: topic, subscription, all subscriptions, then shard, log and position of each
-- shard. ARGV: shards, start, its time, mode, expiry or nothing, name, whether the engine has forgotten it, then for
-- each shard the place that it had reached before that.
if redis.call('HGET', KEYS[1], 'shards') ~= ARGV[1] then
    return fail('topic')
end
local known = redis.call('HMGET', KEYS[2], 'mode', 'forgotten')
local forgotten_by_engine = ARGV[7] == '1'
if forgotten_by_engine and not known[1] and known[2] then
    return fail('subscription')
end
local answer = { known[1] and 0 or 1 }
local states = {}
for shard = 1, tonumber(ARGV[1]) do
    states[shard] = redis.call('HMGET', KEYS[1 + 3 * shard], 'seq', 'floor', 'announced')
    if not states[shard][1] then
        return fail('topic')
    end
end
for shard = 1, tonumber(ARGV[1]) do
    local state, log, position = states[shard], KEYS[2 + 3 * shard], KEYS[3 + 3 * shard]
    local start = redis.call('HMGET', position, 'watermark', 'start')
    if not start[1] then
        local last = tonumber(state[1])
        local place = math.max(tonumber(state[2]), tonumber(state[3]))
        if known[1] or forgotten_by_engine then
            place = math.max(place, math.min(tonumber(ARGV[7 + shard]), last))
        elseif ARGV[2] == 'latest' then
            place = last
        elseif ARGV[2] == 'at' then
            place = math.max(place, position_at(log, tonumber(state[2]), last, tonumber(ARGV[3])))
        end
        start[2] = num(place)
        redis.call('HSET', position, 'start', start[2], 'watermark', start[2], 'ranges', '')
    end
    answer[#answer + 1] = start[2]
end
local time = num(now())
if not known[1] then
    redis.call('HDEL', KEYS[2], 'forgotten')
    redis.call('HSET', KEYS[2], 'mode', ARGV[4], 'registered', time, 'revision', '0')
end
redis.call('HSET', KEYS[2], 'expire', ARGV[5], 'active', time)
redis.call('SADD', KEYS[3], ARGV[6])
return answer
