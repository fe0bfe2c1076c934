"""The server's side of the store: one atomic Lua script for each operation.

A run's content is in four keys that share a hash tag, so that a cluster keeps them on one node:

- `…:state`, a hash: `birth` (random, from the client that made the content), a revision for each topic, `seat` (the
  highest number assigned), `heard` (time of the last call of a member), `ttl` (the lease in that call), `keep`, `kept`
  (when `keep` last changed), and value and version of each document;
- `…:seats` and `…:leases`, sorted sets of incarnations: by seat number, and by the end of the lease;
- `…:records`, a hash from incarnation to the member's record.

All times are milliseconds of the server's clock. Each operation except `MEMBERS` takes time logarithmic in the number
of members; an expiry takes as much for each expired member.
"""

import hashlib
from typing import Final


class Script:
    """One script: its text, and the digest by which a server runs a script that it knows."""

    def __init__(self, body: str) -> None:
        """Put the common part before the body."""
        self.text = _COMMON + body
        self.digest = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()


_COMMON: Final = """
local state, seats, leases, records = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)

local function get(field) return redis.call('HGET', state, field) end

-- Raises a revision and tells watchers, if the user may publish: what counts is what they read.
local function tell(topic)
  local revision = redis.call('HINCRBY', state, 'revision:' .. topic, 1)
  local sent = redis.pcall('PUBLISH', state .. '/' .. topic, revision)
  if type(sent) == 'table' and sent.err then redis.call('HSET', state, 'mute', 1) end
end

-- Content without a birth is the rest of something that was emptied by hand.
local function begin(birth)
  if redis.call('HSETNX', state, 'birth', birth) == 1 then redis.call('DEL', seats, leases, records) end
end

local function keep()
  local till = now + (get('keep') or 86400000)
  for _, key in ipairs(KEYS) do redis.call('PEXPIREAT', key, till) end
end

local function remove(incarnation)
  redis.call('ZREM', seats, incarnation)
  redis.call('ZREM', leases, incarnation)
  redis.call('HDEL', records, incarnation)
end

local function sweep()
  local gone = redis.call('ZRANGEBYSCORE', leases, '-inf', now)
  for _, incarnation in ipairs(gone) do remove(incarnation) end
  if #gone > 0 then tell('members') tell('departures') end
end

local function holds(incarnation, number)
  local score = redis.call('ZSCORE', seats, incarnation)
  return score and tonumber(score) == tonumber(number)
end

local function ahead(number) return redis.call('ZCOUNT', seats, '-inf', '(' .. number) end

-- Whether the server, or its clock, has stood still or jumped: then nobody's silence means anything.
local function paused(ttl)
  local heard = get('heard')
  return heard and (now - heard > ttl * 2 / 3 or now < tonumber(heard))
end

-- Gives everybody a lease from now; where time went back, longer ones too are of a clock that is no more.
local function spare(ttl)
  local back = now < tonumber(get('heard'))
  for _, other in ipairs(redis.call('ZRANGEBYSCORE', leases, '-inf', back and '+inf' or now + ttl)) do
    redis.call('ZADD', leases, now + ttl, other)
  end
end

local function heard(ttl)
  redis.call('HSET', state, 'heard', now, 'ttl', ttl)
end

-- Gives a reply, unless it has what is longer than any value of ours: no agent is to take that in.
local function checked(reply)
  for _, part in ipairs(reply) do
    if type(part) == 'string' and #part > 16777216 then return redis.error_reply('FOREIGN value') end
    local found = type(part) == 'table' and checked(part)
    if found and found.err then return found end
  end
  return reply
end

local function look()
  return redis.call('HMGET', state, 'birth', 'mute', 'revision:members', 'revision:departures', 'revision:round',
    'revision:control')
end
"""

ENLIST: Final = Script("""
local birth, incarnation, record, ttl = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
begin(birth)
if paused(ttl) then spare(ttl) end
sweep()
local number = redis.call('ZSCORE', seats, incarnation)
if not number then
  number = redis.call('HINCRBY', state, 'seat', 1)
  redis.call('ZADD', seats, number, incarnation)
end
redis.call('ZADD', leases, now + ttl, incarnation)
redis.call('HSET', records, incarnation, record)
heard(ttl)
tell('members')
keep()
return {tonumber(number), ahead(number)}
""")

UPDATE: Final = Script("""
local incarnation, number, record = ARGV[1], ARGV[2], ARGV[3]
if not holds(incarnation, number) then
  keep()
  return 0
end
local live = tonumber(redis.call('ZSCORE', leases, incarnation)) > now
if live then
  redis.call('HSET', records, incarnation, record)
  local ttl = tonumber(get('ttl') or 0)
  -- After a pause only a lease may say that members are heard again: it extends the others' first.
  if not paused(ttl) then heard(ttl) end
else
  remove(incarnation)
  tell('departures')
end
tell('members')
keep()
return live and 1 or 0
""")

RENEW: Final = Script("""
local incarnation, number, ttl = ARGV[1], ARGV[2], tonumber(ARGV[3])
local member = holds(incarnation, number)
local pause = paused(ttl)
if pause and member then spare(ttl) end
if not pause or member then sweep() end
keep()
if not (member and holds(incarnation, number)) then return false end
redis.call('ZADD', leases, now + ttl, incarnation)
heard(ttl)
local next_ms = -1
local first = redis.call('ZRANGE', leases, 0, 1, 'WITHSCORES')
for at = 1, #first, 2 do
  if first[at] ~= incarnation then
    next_ms = math.max(0, first[at + 1] - now)
    break
  end
end
return checked({ahead(number), redis.call('ZCARD', seats), next_ms, look()})
""")

WITHDRAW: Final = Script("""
local incarnation, number = ARGV[1], ARGV[2]
if holds(incarnation, number) then
  remove(incarnation)
  tell('members')
  tell('departures')
end
keep()
return 1
""")

MEMBERS: Final = Script("""
sweep()
keep()
return checked({
  get('revision:members') or 0,
  redis.call('ZRANGE', seats, 0, -1, 'WITHSCORES'),
  redis.call('HGETALL', records),
})
""")

# For clients that only read: writes nothing, and extends no keep time.
SURVEY: Final = Script("""
local found = {}
for at, key in ipairs(ARGV) do found[at] = redis.call('HGET', state, 'value:' .. key) end
return checked({
  redis.call('ZRANGE', seats, 0, -1, 'WITHSCORES'),
  redis.call('HGETALL', records),
  redis.call('ZRANGEBYSCORE', leases, '-inf', now),
  found,
})
""")

LOAD: Final = Script("""
local key = ARGV[1]
keep()
return checked(redis.call('HMGET', state, 'value:' .. key, 'version:' .. key))
""")

SWAP: Final = Script("""
local birth, key, new, expect, nonce, keep_ms = unpack(ARGV)
local standing = redis.call('HMGET', state, 'value:' .. key, 'version:' .. key)
local applied = (standing[2] or '') == expect
if applied then
  begin(birth)
  local version = redis.call('HINCRBY', state, 'writes', 1) .. '-' .. nonce
  if get('keep') ~= keep_ms then redis.call('HSET', state, 'kept', now) end
  redis.call('HSET', state, 'value:' .. key, new, 'version:' .. key, version, 'keep', keep_ms)
  standing = {false, version}
  -- A document may have any name, also that of a topic which is none of a document.
  if key == 'round' or key == 'control' then tell(key) end
end
keep()
return checked({applied and 1 or 0, standing[1], standing[2]})
""")

# For nodes that come after the end: extends no keep time.
AGE: Final = Script("""
local kept = get('kept')
return kept and math.max(0, now - kept) or false
""")

LOOK: Final = Script("""
keep()
return checked(look())
""")
