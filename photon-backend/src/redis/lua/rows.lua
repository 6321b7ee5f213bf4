-- Stored deliveries of one shard of one subscription. A row is one value: 8 bytes version, 1 state (0 parked,
-- 1 waiting, 2 dead, 3 dead and blocking its lane), 8 due, 4 attempts, 9 each for the first and the last failure
-- and the first deferral, 4 length of the lane, the lane, 1 length of the reason, the reason, and what only the
-- client reads. A live row has a member in `live`: lane and place, so that a range of it is a lane.

local at = tonumber(ARGV[1])
local ROWS, DEAD, PARKED, MARKS, LIVE, HEADS =
    KEYS[at], KEYS[at + 1], KEYS[at + 2], KEYS[at + 3], KEYS[at + 4], KEYS[at + 5]

local function pad(seq)
    return string.format('%020.0f', tonumber(seq))
end

local function version_of(row)
    return struct.unpack('>I8', row)
end

local function state_of(row)
    return string.byte(row, 9)
end

local function lane_of(row)
    return string.sub(row, 49, 52 + struct.unpack('>I4', row, 49))
end

-- The smallest place of a lane, padded.
local function head_of(lane)
    local first = redis.call('ZRANGEBYLEX', LIVE, '[' .. lane, '[' .. lane .. ':', 'LIMIT', 0, 1)[1]
    return first and string.sub(first, -20)
end

local function change_lane(lane, change)
    local before = head_of(lane)
    change()
    local after = head_of(lane)
    if before ~= after then
        if before then
            redis.call('ZREM', HEADS, before)
        end
        if after then
            redis.call('ZADD', HEADS, num(tonumber(after)), after)
        end
    end
end

local function unlink(seq, row)
    redis.call('ZREM', DEAD, seq)
    redis.call('ZREM', PARKED, seq)
    if state_of(row) ~= 2 then
        local lane = lane_of(row)
        change_lane(lane, function() redis.call('ZREM', LIVE, lane .. pad(seq)) end)
    end
end

local function store(seq, row)
    local old = redis.call('HGET', ROWS, seq)
    if old then
        unlink(seq, old)
    end
    redis.call('HSET', ROWS, seq, row)
    local state = state_of(row)
    redis.call('ZADD', state >= 2 and DEAD or PARKED, seq, seq)
    if state ~= 2 then
        local lane = lane_of(row)
        change_lane(lane, function() redis.call('ZADD', LIVE, 0, lane .. pad(seq)) end)
    end
end

local function drop(seq, row)
    redis.call('HDEL', ROWS, seq)
    unlink(seq, row)
end

-- Removes a row, and leaves a mark if no checkpoint covers its place.
local function close(seq, row, covered)
    drop(seq, row)
    if not covered then
        redis.call('ZADD', MARKS, seq, seq)
    end
end
