-- Checkpoints: a watermark, and ranges as text, `first-last,` for each, ascending.

-- Whether a checkpoint counts a place as settled.
local function covers(watermark, ranges, seq)
    seq = tonumber(seq)
    if seq <= tonumber(watermark) then
        return true
    end
    for first, last in string.gmatch(ranges, '(%d+)%-(%d+)') do
        if seq <= tonumber(last) then
            return seq >= tonumber(first)
        end
    end
    return false
end

-- Whether all stored ranges lie in the own ones, which may touch one another.
local function includes(own, stored)
    local parts = string.gmatch(own, '(%d+)%-(%d+)')
    local first, last = parts()
    for from, to in string.gmatch(stored, '(%d+)%-(%d+)') do
        from, to = tonumber(from), tonumber(to)
        while first and tonumber(last) < from do
            first, last = parts()
        end
        while first and tonumber(first) <= from and tonumber(last) < to do
            from = tonumber(last) + 1
            first, last = parts()
        end
        if not first or tonumber(first) > from then
            return false
        end
    end
    return true
end

-- Whether a checkpoint takes the place of the stored one: else it is an older one that arrives late.
local function replaces(watermark, ranges, stored_watermark, stored_ranges)
    watermark, stored_watermark = tonumber(watermark), tonumber(stored_watermark)
    return watermark > stored_watermark
        or watermark == stored_watermark and includes(ranges, stored_ranges)
end
