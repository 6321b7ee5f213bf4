-- Appends to one shard. KEYS: shard, log, dedup, ages. ARGV: channel, who publishes, the last place that the publisher
-- knows to have been given out, dedup window (0: the events have no dedup ids), then for each event its bytes and, with a
-- window, its dedup id after a letter, or nothing.
local state = redis.call('HMGET', KEYS[1], 'seq', 'time', 'floor')
if not state[1] then
    return fail('topic')
end
-- A server that lost its last writes would give out places again, and readers who have passed them would never see what
-- comes there now.
local seq, time = math.max(tonumber(state[1]), tonumber(ARGV[3])), math.max(now(), tonumber(state[2]))
local suffix = '-' .. num(time)
local window = tonumber(ARGV[4])
local before, added = seq, false

local function add(event)
    seq = seq + 1
    added = true
    -- Behind the first one there is room.
    if seq > before + 1 then
        redis.call('XADD', KEYS[2], num(seq) .. suffix, 'e', event)
        return
    end
    local done = redis.pcall('XADD', KEYS[2], num(seq) .. suffix, 'e', event)
    if not done.err then
        return
    end
    -- Another program may have added entries with larger ids: go on behind them.
    local last = last_place(KEYS[2])
    if last < seq then
        error(done)
    end
    if last >= 9007199254740000 then
        error({ err = 'PHOTON exhausted' })
    end
    redis.call('HSET', KEYS[1], 'jump_from', num(seq - 1), 'jump_to', num(last))
    seq = last + 1
    before = last
    redis.call('XADD', KEYS[2], num(seq) .. suffix, 'e', event)
end

local answer = {}
if window == 0 then
    for i = 5, #ARGV do
        add(ARGV[i])
        if i == 5 then
            answer[1] = num(seq)
        end
    end
else
    for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[4], '-inf', num(time - window), 'LIMIT', 0, #ARGV)) do
        redis.call('HDEL', KEYS[3], id)
        redis.call('ZREM', KEYS[4], id)
    end
    for i = 5, #ARGV, 2 do
        local id = ARGV[i + 1]
        local first = id ~= '' and redis.call('HGET', KEYS[3], id)
        if first and tonumber(redis.call('ZSCORE', KEYS[4], id) or 0) + window > time then
            answer[#answer + 1] = 'd' .. first
        else
            add(ARGV[i])
            if id ~= '' then
                redis.call('HSET', KEYS[3], id, num(seq))
                redis.call('ZADD', KEYS[4], num(time), id)
            end
            answer[#answer + 1] = 'n' .. num(seq)
        end
    end
end
if added then
    redis.call('HSET', KEYS[1], 'seq', num(seq), 'time', num(time))
    redis.pcall('PUBLISH', ARGV[1], ARGV[2])
end
return answer
