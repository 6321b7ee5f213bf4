-- Tries every command that the scripts use, on a key that is not used otherwise. KEYS: a key. Returns what the server
-- said to the first that it refuses, and its name.
local key = KEYS[1]
local tries = {
    { 'DEL', key }, { 'HSET', key, 'a', '1' }, { 'HSETNX', key, 'a', '1' }, { 'HGET', key, 'a' },
    { 'HMGET', key, 'a' }, { 'HGETALL', key }, { 'HEXISTS', key, 'a' }, { 'HINCRBY', key, 'a', 1 },
    { 'HDEL', key, 'a' }, { 'ZADD', key, 0, 'a' }, { 'ZSCORE', key, 'a' }, { 'ZCARD', key },
    { 'ZRANGEBYSCORE', key, 0, 0 }, { 'ZRANGEBYLEX', key, '[a', '[b' }, { 'ZLEXCOUNT', key, '[a', '[b' },
    { 'ZREMRANGEBYSCORE', key, 1, 1 }, { 'ZREM', key, 'a' }, { 'SADD', key, 'a' }, { 'SMEMBERS', key },
    { 'SREM', key, 'a' }, { 'XADD', key, '1-1', 'e', '' }, { 'XRANGE', key, '-', '+', 'COUNT', 1 },
    { 'XINFO', 'STREAM', key }, { 'XTRIM', key, 'MINID', '2' }, { 'DEL', key }, { 'EXISTS', key },
    { 'SETNX', key, '1' }, { 'GET', key }, { 'DEL', key }, { 'TIME' },
}
for _, command in ipairs(tries) do
    local done = redis.pcall(unpack(command))
    if type(done) == 'table' and done.err then
        redis.pcall('DEL', key)
        return { command[1], done.err }
    end
end
return {}
