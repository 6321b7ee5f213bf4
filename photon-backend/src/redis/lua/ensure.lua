-- Makes a topic, or tells what it is; makes up for shards that are missing. KEYS: topic, then shard and log of each
-- shard. ARGV: shards, generation of a new topic, its key after a letter or nothing, then for each shard the last
-- place that is known to have been given out.
local known = redis.call('HMGET', KEYS[1], 'generation', 'shards', 'key')
if known[1] and known[2] ~= ARGV[1] then
    return { known[1], known[2], known[3] or '' }
end
if not known[1] then
    redis.call('HSET', KEYS[1], 'generation', ARGV[2], 'shards', ARGV[1])
    known[1] = ARGV[2]
end
if not known[3] and ARGV[3] ~= '' then
    redis.call('HSET', KEYS[1], 'key', ARGV[3])
    known[3] = ARGV[3]
end
for shard = 1, tonumber(ARGV[1]) do
    local state, log = KEYS[2 * shard], KEYS[2 * shard + 1]
    if not redis.call('HGET', state, 'seq') then
        local last = math.max(tonumber(ARGV[3 + shard]), last_place(log))
        local first = entry_after(log, 0)
        local floor = num(first and first - 1 or last)
        redis.call('HSET', state, 'seq', num(last), 'floor', floor, 'announced', floor, 'time', '0')
    end
end
return { known[1], ARGV[1], known[3] or '' }
