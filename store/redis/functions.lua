-- Functions of package redis: see doc.go. VERSION is a hash of this text, so each version is a library of its own.
-- All keys of a call begin with the same hash tag, P, so they are on one server. A call changes all or nothing,
-- unless it fails in the middle: then its outcome is unknown.
--
-- All functions but fresh have in common:
--   KEYS[1]  P .. "meta"     KEYS[2]  P .. "absent", which never exists: see doc.go
--   ARGV[1]  remembered: see begin
--   answer   the history, the rest of the quiet time in ms, and then what stands beside the function
-- The names of all other keys are made from P: see doc.go.

local me -- the replication id of this server when this library last read it
local read_at = 0 -- when that was, in microseconds
local same = {} -- earlier ids that Redis replaced although nothing was forgotten
local READ_AGAIN, CLOSE = 100000, 500000
local known = {} -- partitions whose meta this library has seen
local MAX_QUIET = 86400000
-- Jumps in microseconds. What is lost with meta may have jumped before. A hot key may be ahead of the clock.
local JUMP, LOST, AHEAD = 2 ^ 30, 2 ^ 36, 2 ^ 20

local function micros()
  local t = redis.call('TIME')
  return t[1] * 1000000 + t[2]
end

local function number(n) return string.format('%.0f', n) end

local function info(section, field)
  return string.match(redis.call('INFO', section), field .. ':([^\r\n]*)')
end

-- read_id reads the replication id, every 0.1 s. A server that becomes a replica and is promoted again has another one, and it
-- may have missed all that its successor confirmed. That successor granted nothing for 0.5 s, the shortest TTL, so nothing was
-- missed before. Redis also makes a new id for the first replica, and when none is left for long (repl-backlog-ttl). Then there is
-- no second id, unlike after a promotion.
local function read_id(now)
  local id, since = info('replication', 'master_replid'), now - read_at
  if me and id ~= me then
    if since >= 0 and since < CLOSE and string.match(info('replication', 'master_replid2'), '^0+$') then
      same[me] = true
    else
      same = {}
    end
  end
  me, read_at = id, now
end

-- base is what versions and tokens are above. After a jump it grows half as fast as the clock, until the clock is there. So two
-- servers that go on from the same data at different times do not give away the same tokens.
local function base(floor, from, began, now)
  return math.max(tonumber(floor or 0), math.floor(tonumber(from or 0) + math.max(0, now - tonumber(began or now)) / 2))
end

-- write_meta begins a history.
local function write_meta(P, now, quiet, floor, lost, jump)
  local history = string.sub(redis.sha1hex(me .. P .. number(now)), 1, 32)
  local m = { me, history, number(quiet), floor, lost and number(lost) or '', number(jump), number(now) }
  redis.call('HSET', P .. 'meta', 'run', m[1], 'history', m[2], 'until', m[3], 'floor', m[4], 'lost', m[5], 'from', m[6], 'began', m[7])
  redis.call('HDEL', P .. 'meta', 'new')
  return m
end

-- begin_history notes that this server's data may be older than what was confirmed. Tokens and versions jump, and the quiet
-- time begins. Without meta, all is forgotten: then it began with this process, unless the process was a replica or
-- lost its data while it ran.
local function begin_history(P, now, ms)
  local from, lost = ms, nil
  local longest, before = 0, {}
  local all = redis.call('HGETALL', P .. 'meta')
  for i = 1, #all, 2 do
    local ttl, value = tonumber(string.match(all[i], '^ttl (%d+)$')), all[i + 1]
    before[all[i]] = value
    if ttl and value + 2 * ttl + 60000 > ms then
      longest = math.max(longest, ttl)
    elseif ttl then
      redis.call('HDEL', P .. 'meta', all[i])
    end
  end
  if not before.run then
    if not known[P] and string.match(info('replication', 'master_replid2'), '^0+$') then
      from = ms - info('server', 'uptime_in_seconds') * 1000
    end
    lost = from
  elseif before.lost ~= '' and tonumber(before['until']) > ms then
    lost = tonumber(before.lost) -- its quiet time is not over
  end
  local quiet = math.max(tonumber(before['until'] or 0), from + math.min(longest, MAX_QUIET))
  local floor = before.floor or '0'
  local jump = math.max(base(floor, before.from, before.began, now), now) + (before.run and JUMP or LOST)
  return write_meta(P, now, quiet, floor, lost, jump)
end

-- begin is called first by each function: is this still the server, or the data, that the callers know? Mostly it only reads meta.
-- remembered is what the caller remembers, for a server that has lost it. Its fields have a space between them:
--   before      the longest TTL of leases that it opened before this history, in ms
--   ever        the longest TTL of leases that it opened at all
--   seen        the greatest token that it saw before this history
--   seen_ever   the greatest token that it saw at all
--   history     the last history that it knows; empty: none
-- "This history" is the history that the caller names. If it is an earlier one than the server's, ever and seen_ever count. The caller sends them with
-- each call, because the first call after a loss may be its last: if it is a renewal, it finds the caller's leases lost.
-- It returns the history, the rest of the quiet time in ms, the present time in microseconds, and the base of tokens.
local function begin(P, remembered)
  local now = micros()
  local ms = math.floor(now / 1000)
  local m = redis.call('HMGET', P .. 'meta', 'run', 'history', 'until', 'floor', 'lost', 'from', 'began', 'new')
  if m[1] ~= me or now - read_at > READ_AGAIN or now < read_at then read_id(now) end
  if m[1] ~= me and same[m[1]] then
    redis.call('HSET', P .. 'meta', 'run', me)
  elseif m[1] ~= me then
    m = begin_history(P, now, ms)
  end
  known[P] = true
  local before, ever, seen, seen_ever, knows = string.match(remembered, '^(%d+) (%d+) (%d+) (%d+) (%x*)$')
  if m[8] and knows ~= '' and knows ~= m[2] then -- the caller has used this server before it was marked as new, so it was not
    m[5] = m[8]
    redis.call('HSET', P .. 'meta', 'lost', m[5])
    redis.call('HDEL', P .. 'meta', 'new')
  end
  local quiet, least = tonumber(m[3]), base(m[4], m[6], m[7], now)
  if m[5] ~= '' then -- nobody knows TTLs and tokens but the callers
    -- A caller that knows this history tells what was before it: its tokens must not raise it, because each would raise the next one.
    if knows ~= m[2] then before, seen = ever, seen_ever end
    if tonumber(seen) > math.max(least, now) then
      least = tonumber(seen) + AHEAD
      redis.call('HSET', P .. 'meta', 'from', number(least), 'began', number(now))
    end
    local lost = tonumber(m[5])
    local more = lost + math.min(tonumber(before), MAX_QUIET)
    if more > math.max(quiet, ms) and (quiet > ms or quiet <= lost) then
      quiet = more
      redis.call('HSET', P .. 'meta', 'until', number(quiet))
    end
  end
  return m[2], math.max(0, quiet - ms), now, least
end

local function prefix(keys) return string.sub(keys[1], 1, -5) end -- without "meta"

-- fresh marks a partition as new, so that its first history has no quiet time.
--   ARGV[1]  "check", or "mark", which also does it
--   answer   "new", or what speaks against that: "used", "lost", "promoted"
-- Tokens jump as after a loss. If an instance that knows an earlier history comes later, the quiet time begins with the mark.
local function fresh(keys, args)
  local P, now = prefix(keys), micros()
  if redis.call('EXISTS', P .. 'meta') == 1 then return { 'used' } end
  if known[P] or redis.call('EXISTS', P .. 'i') == 1 then return { 'lost' } end
  if not string.match(info('replication', 'master_replid2'), '^0+$') then return { 'promoted' } end
  if args[1] == 'mark' then
    read_id(now)
    write_meta(P, now, 0, '0', nil, now + LOST)
    redis.call('HSET', P .. 'meta', 'new', number(math.floor(now / 1000)))
    known[P] = true
  end
  return { 'new' }
end

-- A record: "1 VERSION TOKENS LEASES|", 16 bytes for each lease, and the data.
local function header(value)
  local at, stop, version, tokens, leases = string.find(value, '^1 (%d+) (%d+) (%d+)|')
  if not at then error('a record has an unknown format: another program has written it, or a newer sidecar') end
  return tonumber(version), tonumber(tokens), tonumber(leases), stop
end

-- states adds the remaining ms of the leases that a record names; less than zero means dead.
local function states(P, value, to)
  if value then
    local _, _, leases, stop = header(value)
    for i = 0, leases - 1 do
      to[#to + 1] = redis.call('PTTL', P .. 'l:' .. string.sub(value, stop + 1 + 16 * i, stop + 16 + 16 * i))
    end
  end
  return to
end

-- load reads records, and the states of leases.
--   ARGV[2]           the number n of keys
--   ARGV[3 .. 2 + n]  keys
--   ARGV[3 + n ..]    ids of leases
--   answer            for each key { value, the remaining ms of each lease that it names }; for each lease its remaining ms
local function load(keys, args)
  local P = prefix(keys)
  local history, quiet = begin(P, args[1])
  local n = tonumber(args[2])
  local out = { history, quiet }
  for i = 3, 2 + n do
    local value = redis.call('GET', P .. 'k:' .. args[i])
    out[#out + 1] = states(P, value, { value })
  end
  for i = 3 + n, #args do
    out[#out + 1] = redis.call('PTTL', P .. 'l:' .. args[i])
  end
  return out
end

-- swap carries out each of several swaps, or not.
--   ARGV[2]  a list in MessagePack, which costs less than many arguments: see swap.go, add. It has for each swap:
--     1  key
--     2  the version that the record must have; 0: it must not exist
--     3  what to do: "g" write and grant, "w" write, "d" delete
--     4  the new value behind its version, which begins with a space
--     5  the ids of the leases that must live, 16 bytes each
--     6  the number of letters; for each follow channel, key and body
--   answer   for each swap: the new version, or { 0, value, states }, or { 2, value, states } if the quiet time forbids it
local function swap(keys, args)
  local P = prefix(keys)
  local history, quiet, now, floor = begin(P, args[1])
  local out = { history, quiet }
  local list = cmsgpack.unpack(args[2])
  local lives = {} -- the leases that this call has looked at: it changes none
  local written, text
  local i = 1
  while i <= #list do
    local key, expected, what = list[i], list[i + 1], list[i + 2]
    local living, letters = list[i + 4], list[i + 5]
    local name = P .. 'k:' .. key
    local value = redis.call('GET', name)
    local version, reserved = 0, 0
    if value then version, reserved = header(value) end
    local right = version == expected
    for at = 1, #living, 16 do
      local id = string.sub(living, at, at + 15)
      if lives[id] == nil then lives[id] = redis.call('EXISTS', P .. 'l:' .. id) == 1 end
      right = right and lives[id]
    end
    if not right or what == 'g' and quiet > 0 then
      out[#out + 1] = states(P, value, { right and 2 or 0, value })
    else
      local next = math.max(version + math.max(reserved, 1), floor, now)
      if next ~= written then written, text = next, number(next) end
      if what == 'd' then
        redis.call('DEL', name)
        redis.call('ZREM', P .. 'i', key)
        floor = next + 1
        redis.call('HSET', P .. 'meta', 'floor', number(floor))
      else
        redis.call('SET', name, '1 ' .. text .. list[i + 3])
        if version == 0 then redis.call('ZADD', P .. 'i', 0, key) end
      end
      for l = i + 6, i + 3 + 3 * letters, 3 do
        redis.call('PUBLISH', list[l], text .. ' ' .. #list[l + 1] .. ' ' .. list[l + 1] .. list[l + 2])
      end
      out[#out + 1] = text
    end
    i = i + 6 + 3 * letters
  end
  return out
end

-- raise makes later tokens greater.
--   ARGV[2]  the least token from now on
local function raise(keys, args)
  local P = prefix(keys)
  local history, quiet, _, floor = begin(P, args[1])
  redis.call('HSET', P .. 'meta', 'floor', number(math.max(floor, tonumber(args[2]))))
  return { history, quiet }
end

-- next
--   answer  a number that is above the tokens of all deleted records
local function next_token(keys, args)
  local history, quiet, now, floor = begin(prefix(keys), args[1])
  return { history, quiet, number(math.max(floor, now)) }
end

-- scan reads records in the order of their keys.
--   ARGV[2], ARGV[3]  the bounds, as ZRANGEBYLEX has them
--   ARGV[4]           the greatest number of records
--   answer            for each record: key, value
local function scan(keys, args)
  local P = prefix(keys)
  local history, quiet = begin(P, args[1])
  local out = { history, quiet }
  for _, key in ipairs(redis.call('ZRANGEBYLEX', P .. 'i', args[2], args[3], 'LIMIT', 0, args[4])) do
    out[#out + 1] = key
    out[#out + 1] = redis.call('GET', P .. 'k:' .. key)
  end
  return out
end

-- lives lets a lease live for ttl ms. noted is the TTL as the quiet time counts it, or 0.
local function lives(P, id, ttl, noted, instance, now)
  if noted ~= '0' then redis.call('HSET', P .. 'meta', 'ttl ' .. noted, number(math.floor(now / 1000))) end
  redis.call('SET', P .. 'l:' .. id, ttl .. ' ' .. noted .. ' ' .. instance, 'PX', ttl)
  if instance ~= '' then
    local own = P .. 'o:' .. instance
    redis.call('SADD', own, id)
    if redis.call('PTTL', own) < tonumber(ttl) then redis.call('PEXPIRE', own, ttl) end
  end
end

-- open opens leases, or extends them.
--   ARGV[2 ..]  for each lease: id, TTL in ms, the TTL as the quiet time counts it (0: not at all), instance
local function open(keys, args)
  local P = prefix(keys)
  local history, quiet, now = begin(P, args[1])
  for i = 2, #args, 4 do lives(P, args[i], args[i + 1], args[i + 2], args[i + 3], now) end
  return { history, quiet }
end

-- renew extends living leases.
--   ARGV[2 ..]  ids of leases
--   answer      for each: 1 if it was extended, or 0
local function renew(keys, args)
  local P = prefix(keys)
  local history, quiet, now = begin(P, args[1])
  local out = { history, quiet }
  for i = 2, #args do
    local value = redis.call('GET', P .. 'l:' .. args[i])
    if value then
      local ttl, noted, instance = string.match(value, '^(%d+) (%d+) (.*)$')
      lives(P, args[i], ttl, noted, instance, now)
    end
    out[#out + 1] = value and 1 or 0
  end
  return out
end

-- revoke ends leases.
--   ARGV[2 ..]  ids of leases
local function revoke(keys, args)
  local P = prefix(keys)
  local history, quiet = begin(P, args[1])
  for i = 2, #args do
    local value = redis.call('GET', P .. 'l:' .. args[i])
    if value then
      redis.call('DEL', P .. 'l:' .. args[i])
      local instance = string.match(value, '^%d+ %d+ (.*)$')
      if instance ~= '' then redis.call('SREM', P .. 'o:' .. instance, args[i]) end
    end
  end
  return { history, quiet }
end

-- opened
--   ARGV[2]  an instance
--   answer   the ids of the living leases that it has opened
local function opened(keys, args)
  local P = prefix(keys)
  local history, quiet = begin(P, args[1])
  local out = { history, quiet }
  for _, id in ipairs(redis.call('SMEMBERS', P .. 'o:' .. args[2])) do
    if redis.call('EXISTS', P .. 'l:' .. id) == 1 then
      out[#out + 1] = id
    else
      redis.call('SREM', P .. 'o:' .. args[2], id)
    end
  end
  return out
end

-- If the memory is full, nothing new is granted (grant, open). All that ends, hands off or keeps a lock still works (swap, open_for_hand_off, renew, revoke): a
-- hand-off is a grant, too, but it takes the place of a lock that ends. So two functions have two names, one for each case: sendSome (swap.go) and OpenLeases (lease.go) choose.
local function register(name, callback, flags)
  redis.register_function { function_name = 'locksidecar_' .. name .. '_VERSION', callback = callback, flags = flags }
end
register('grant', swap, {})
register('open', open, {})
register('fresh', fresh, {})
register('swap', swap, { 'allow-oom' })
register('open_for_hand_off', open, { 'allow-oom' })
register('load', load, { 'allow-oom' })
register('raise', raise, {})
register('next', next_token, { 'allow-oom' })
register('scan', scan, { 'allow-oom' })
register('renew', renew, { 'allow-oom' })
register('revoke', revoke, { 'allow-oom' })
register('opened', opened, { 'allow-oom' })
