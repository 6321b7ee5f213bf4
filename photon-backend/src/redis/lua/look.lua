-- Looks at stored deliveries. KEYS: the rows. ARGV: 1 (where they are), what, and more.
if ARGV[2] == 'heads' then
    local heads = {}
    for _, seq in ipairs(redis.call('ZRANGEBYSCORE', HEADS, '(' .. ARGV[3], '+inf', 'LIMIT', 0, ARGV[4])) do
        seq = num(tonumber(seq))
        local row = redis.call('HGET', ROWS, seq)
        local lane = lane_of(row)
        local rows = redis.call('ZLEXCOUNT', LIVE, '[' .. lane, '[' .. lane .. ':')
        heads[#heads + 1] = { seq, string.sub(row, 1, 48 + #lane), num(rows) }
    end
    return heads
elseif ARGV[2] == 'lane' then
    local rows, lane = {}, ARGV[3]
    for _, member in ipairs(redis.call('ZRANGEBYLEX', LIVE, '[' .. lane, '[' .. lane .. ':', 'LIMIT', 0, ARGV[4])) do
        local seq = num(tonumber(string.sub(member, -20)))
        rows[#rows + 1] = { seq, redis.call('HGET', ROWS, seq) }
    end
    return rows
end
-- Rows and marks between two places, and how far they reach: some at a time of each kind.
local through, most = tonumber(ARGV[4]), tonumber(ARGV[5])
local kinds = {}
for kind, index in ipairs({ DEAD, PARKED, MARKS }) do
    local seqs = redis.call('ZRANGEBYSCORE', index, '(' .. ARGV[3], ARGV[4], 'LIMIT', 0, most)
    if #seqs == most then
        through = math.min(through, tonumber(seqs[most]))
    end
    kinds[kind] = seqs
end
local found = {}
for kind, seqs in ipairs(kinds) do
    for _, seq in ipairs(seqs) do
        if tonumber(seq) <= through then
            local row = kind == 3 and '' or string.sub(redis.call('HGET', ROWS, seq), 1, 17)
            found[#found + 1] = { seq, row }
        end
    end
end
return { num(through), found }
