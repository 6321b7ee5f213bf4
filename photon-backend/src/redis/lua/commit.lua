-- What an owner writes about one shard. KEYS: position, then the rows. ARGV: 2 (where the rows are), epoch, token,
-- watermark or nothing, ranges, trials, number of puts; for each put place, version to replace and row; for each end place and
-- version. Returns the places in conflict after a word.
local position = redis.call('HMGET', KEYS[1], 'epoch', 'holder', 'watermark', 'ranges')
if position[1] ~= ARGV[2] or position[2] ~= ARGV[3] then
    return { 'fenced' }
end
if not position[3] then
    return fail('subscription')
end
local watermark, ranges = position[3], position[4] or ''
local answer = { 'committed' }

local function put(seq, version, row)
    local old = redis.call('HGET', ROWS, seq)
    if old then
        if version_of(old) == tonumber(version) then
            store(seq, row)
            return true
        end
        -- What an earlier attempt of the same put left behind.
        return old == row
    end
    -- A new row for a place that has a mark, or that is settled without a row, is the repetition of a put whose row
    -- has come to an end since.
    if tonumber(version) > 0 or covers(watermark, ranges, seq) or redis.call('ZSCORE', MARKS, seq) then
        return false
    end
    store(seq, row)
    return true
end

local puts = tonumber(ARGV[7])
for i = 8, 7 + 3 * puts, 3 do
    if not put(ARGV[i], ARGV[i + 1], ARGV[i + 2]) then
        answer[#answer + 1] = ARGV[i]
    end
end
if ARGV[4] == '' then
    return answer
end
if replaces(ARGV[4], ARGV[5], watermark, ranges) then
    watermark, ranges = ARGV[4], ARGV[5]
    redis.call('HSET', KEYS[1], 'watermark', watermark, 'ranges', ranges)
end
redis.call('HSET', KEYS[1], 'trials', ARGV[6], 'active', num(now()))
for i = 8 + 3 * puts, #ARGV, 2 do
    local row = redis.call('HGET', ROWS, ARGV[i])
    if row then
        if version_of(row) == tonumber(ARGV[i + 1]) then
            close(ARGV[i], row, covers(watermark, ranges, ARGV[i]))
        else
            answer[#answer + 1] = ARGV[i]
        end
    end
end
redis.call('ZREMRANGEBYSCORE', MARKS, '-inf', watermark)
return answer
