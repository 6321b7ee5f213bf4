-- What every script may use. Numbers are places and microseconds: whole, and below 2^53.

local function num(n)
    return string.format('%.0f', n)
end

local function now()
    local time = redis.call('TIME')
    return tonumber(time[1]) * 1000000 + tonumber(time[2])
end

-- Photon's own errors start with a word of their own, so that the client knows them.
local function fail(what)
    return redis.error_reply('PHOTON ' .. what)
end

-- The place of the last entry that a stream ever had, also when it was removed since; 0 for no stream.
local function last_place(log)
    if redis.call('EXISTS', log) == 0 then
        return 0
    end
    local info = redis.call('XINFO', 'STREAM', log)
    for i = 1, #info, 2 do
        if info[i] == 'last-generated-id' then
            return tonumber(string.match(info[i + 1], '^%d+'))
        end
    end
    return 0
end

-- Place and time of the first entry of a stream after a place.
local function entry_after(log, place)
    local found = redis.call('XRANGE', log, num(place + 1), '+', 'COUNT', 1)[1]
    if not found then
        return nil
    end
    local seq, time = string.match(found[1], '^(%d+)-(%d+)$')
    return tonumber(seq), tonumber(time)
end

-- The same, without the entries of other programs, whose ids hold no time in microseconds.
local function record_after(log, place)
    local seq, time = entry_after(log, place)
    while seq and time < 1000000000000 do
        seq, time = entry_after(log, seq)
    end
    return seq, time
end

-- The last place whose record was taken in before a time.
local function position_at(log, floor, last, time)
    -- Everything up to `low` is earlier; everything after `high` is not.
    local low, high = floor, last
    while low < high do
        local middle = low + math.floor((high - low) / 2)
        local seq, at = record_after(log, middle)
        if seq and seq <= high and at < time then
            low = seq
        else
            high = middle
        end
    end
    return low
end
