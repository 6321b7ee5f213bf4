-- Redrives or discards dead rows, if they are still what was seen. KEYS: position, subscription, then the rows.
-- ARGV: 3 (where the rows are), `redrive` or `discard`, then place and version of each. Returns how many.
local position = redis.call('HMGET', KEYS[1], 'watermark', 'ranges')
if not position[1] then
    return 0
end
local changed = 0
for i = 3, #ARGV, 2 do
    local seq = ARGV[i]
    local row = redis.call('HGET', ROWS, seq)
    if row and state_of(row) >= 2 and version_of(row) == tonumber(ARGV[i + 1]) then
        if ARGV[2] == 'discard' then
            close(seq, row, covers(position[1], position[2], seq))
        else
            local never = string.rep('\0', 9)
            local lane = lane_of(row)
            local reason = 49 + #lane
            store(seq, table.concat({
                struct.pack('>I8', version_of(row) + 1), '\0', struct.pack('>I8', now()), '\0\0\0\0',
                never, string.sub(row, 31, 39), never, lane, '\0',
                string.sub(row, reason + 1 + string.byte(row, reason)),
            }))
        end
        changed = changed + 1
    end
end
if changed > 0 then
    redis.call('HINCRBY', KEYS[2], 'revision', 1)
end
return changed
