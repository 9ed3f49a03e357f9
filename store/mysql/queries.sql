-- The statements of this package. They are sent as text, several in one packet. Each ? becomes a number or a hexadecimal
-- literal, or a list of them, so no text of a caller is ever parsed. {now} is the start of the statement in microseconds
-- since 1970, in UTC whatever the session's time zone is. A statement that comes after a lock therefore judges by the
-- time after the lock. SYSDATE would be local time, which repeats an hour each year. {server} names the server that
-- carries the statement out.

-- name: end_other
-- Whatever a session or a failed packet has left, a packet begins outside of a transaction.
ROLLBACK AND NO CHAIN NO RELEASE

-- name: isolation
-- For the next transaction only: nothing of a session is needed, and locks of gaps are few.
SET TRANSACTION ISOLATION LEVEL READ COMMITTED

-- name: begin
START TRANSACTION READ WRITE

-- name: begin_read
-- Without a transaction of its own, a read would begin one where autocommit is off, and keep its locks under SERIALIZABLE.
START TRANSACTION READ ONLY

-- name: commit
COMMIT AND NO CHAIN NO RELEASE

-- name: guard
-- Fails, and so ends the packet, if this server is not the one that wrote the history: another one was promoted, or the
-- statement was sent to a replica. It also fails on an old primary, whose history began before one that a sidecar has seen.
-- Answers the rest of the quiet time, the history, and when it began.
SELECT m.quiet_until - {now}, m.history,
    (SELECT 1 UNION ALL SELECT 1 FROM DUAL WHERE m.server IS NULL OR m.server <> {server} OR m.began < GREATEST(m.outdated, ?)), m.began
FROM (SELECT 1 AS one) o LEFT JOIN locksidecar_meta m ON m.id = 1

-- name: load
SELECT name, version, tokens, leases, data FROM locksidecar_locks FORCE INDEX (PRIMARY) WHERE name IN (?)

-- name: lease_states
SELECT id, expires_at - {now} FROM locksidecar_leases FORCE INDEX (PRIMARY) WHERE id IN (?)

-- name: scan
SELECT name, version, tokens, leases, data FROM locksidecar_locks FORCE INDEX (PRIMARY)
WHERE name > ? AND name >= ? AND name < ? ORDER BY name LIMIT ?

-- name: lock_records
-- The index is forced, because a scan of a small table would wait for the locks of other keys.
SELECT name FROM locksidecar_locks FORCE INDEX (PRIMARY) WHERE name IN (?) ORDER BY name FOR UPDATE NOWAIT

-- name: unlocked_records
SELECT name FROM locksidecar_locks FORCE INDEX (PRIMARY) WHERE name IN (?) ORDER BY name FOR UPDATE SKIP LOCKED

-- name: present_records
SELECT name FROM locksidecar_locks FORCE INDEX (PRIMARY) WHERE name IN (?)

-- name: lock_leases
-- Always after the records, and in the order of ids. A Revoke or a Renew waits until the swap is over.
SELECT id FROM locksidecar_leases FORCE INDEX (PRIMARY) WHERE id IN (?) ORDER BY id LOCK IN SHARE MODE

-- name: keep_leases
-- All rows in the order of ids, before a packet changes them in several statements: InnoDB keeps the lock of a row that does not
-- fulfil the condition of a statement if the statement has waited for it, so the next one would go back to smaller ids.
SELECT id FROM locksidecar_leases FORCE INDEX (PRIMARY) WHERE id IN (?) ORDER BY id FOR UPDATE

-- name: replace
-- All records of a packet at once, because a statement costs the server more than a row. A record that is not as expected
-- stays as it is. The floor is above all versions of the history before.
UPDATE locksidecar_locks FORCE INDEX (PRIMARY) SET
    version = GREATEST(version + tokens, {now}, (SELECT token_floor FROM locksidecar_meta WHERE id = 1)),
    tokens = ELT(FIELD(name, ?), ?), swap_id = ?, leases = ELT(FIELD(name, ?), ?), data = ELT(FIELD(name, ?), ?)
WHERE name IN (?) AND (name, version) IN (?)

-- name: create
-- If a record exists, it stays as it is. Only names are in the UNION: MariaDB 10.11 keeps the lengths of its hexadecimal literals
-- modulo 65,536.
INSERT INTO locksidecar_locks (name, version, tokens, swap_id, leases, data)
SELECT name, {now}, ELT(FIELD(name, ?), ?), ?, ELT(FIELD(name, ?), ?), ELT(FIELD(name, ?), ?) FROM (

-- name: new_record
SELECT ? AS name

-- name: or
UNION ALL

-- name: created
) v WHERE TRUE

-- name: or_keep
ON DUPLICATE KEY UPDATE tokens = locksidecar_locks.tokens

-- name: if_living
-- Continues replace and create. A lease that lives now cannot die before COMMIT, because its row is locked.
AND (SELECT COUNT(*) FROM locksidecar_leases FORCE INDEX (PRIMARY) WHERE id IN (?) AND expires_at > {now}) = ?

-- name: if_not_quiet
AND (SELECT quiet_until FROM locksidecar_meta WHERE id = 1) <= {now}

-- name: above_floor
-- Tokens of a new record are above those of a deleted one. This statement comes after the one that made the record, so
-- it sees each deletion before that.
UPDATE locksidecar_locks FORCE INDEX (PRIMARY)
SET version = (SELECT token_floor FROM locksidecar_meta WHERE id = 1)
WHERE name IN (?) AND swap_id = ? AND version < (SELECT token_floor FROM locksidecar_meta WHERE id = 1)

-- name: letter
INSERT INTO locksidecar_letters (mailbox, name, base, body, sent_at)
SELECT ?, ?, version, ?, {now} FROM locksidecar_locks WHERE name = ? AND swap_id = ?

-- name: post
INSERT INTO locksidecar_letters (mailbox, name, base, body, sent_at) VALUES (?, ?, 0, ?, {now})

-- name: swapped
SELECT name, version, tokens, swap_id = ?, IF(swap_id = ?, '', leases), IF(swap_id = ?, '', data)
FROM locksidecar_locks FORCE INDEX (PRIMARY) WHERE name IN (?)

-- name: raise_floor
UPDATE locksidecar_meta SET token_floor = GREATEST(token_floor, COALESCE(
    (SELECT MAX(version + tokens) FROM locksidecar_locks FORCE INDEX (PRIMARY) WHERE name IN (?) AND swap_id = ?), 0))
WHERE id = 1

-- name: next_token
SELECT GREATEST(token_floor, {now}) FROM locksidecar_meta WHERE id = 1

-- name: raise_floor_to
UPDATE locksidecar_meta SET token_floor = GREATEST(token_floor, ?) WHERE id = 1

-- name: remove
DELETE l FROM locksidecar_locks l FORCE INDEX (PRIMARY) WHERE l.name IN (?) AND l.swap_id = ?

-- name: note_ttl
-- Before a lease is opened, so that a replica which has the lease has the note. A note that is in use is renewed.
UPDATE locksidecar_meta SET longest_ttl = GREATEST(longest_ttl, ?), longest_at = {now}
WHERE id = 1 AND (longest_ttl < ? OR longest_ttl = ? AND longest_at < {now} - ?)

-- name: open_lease
INSERT INTO locksidecar_leases (id, instance, ttl, expires_at) VALUES (?, ?, ?, {now} + ?)
ON DUPLICATE KEY UPDATE ttl = ?, expires_at = {now} + ?

-- name: end_expired
-- A lease that was seen expired must be dead for ever, also if the clock is set back. So its row is deleted before anybody
-- is told.
DELETE l FROM locksidecar_leases l FORCE INDEX (PRIMARY) WHERE l.id IN (?) AND l.expires_at <= {now}

-- name: renew
UPDATE locksidecar_leases FORCE INDEX (PRIMARY) SET expires_at = {now} + ttl WHERE id IN (?)

-- name: existing_leases
SELECT id FROM locksidecar_leases FORCE INDEX (PRIMARY) WHERE id IN (?)

-- name: revoke
DELETE l FROM locksidecar_leases l FORCE INDEX (PRIMARY) WHERE l.id IN (?)

-- name: opened
-- Nobody has opened those of single locks, also if the asked name is empty.
SELECT id FROM locksidecar_leases WHERE instance = ? AND instance <> '' AND expires_at > {now}

-- name: read_letters
SELECT id, name, base, body, {now} - sent_at FROM locksidecar_letters FORCE INDEX (mailbox) WHERE mailbox = ? ORDER BY id LIMIT ?

-- name: delete_letters
DELETE l FROM locksidecar_letters l FORCE INDEX (PRIMARY) WHERE l.id IN (?)

-- name: pin
-- No pooler gives a session to another client in the middle of a transaction. This one reads no table: it has no snapshot that InnoDB
-- would have to keep old rows for, and no lock that an ALTER TABLE or a backup would wait for.
START TRANSACTION READ ONLY

-- name: take_bed
SELECT GET_LOCK(_utf8mb4 ?, ?), CONNECTION_ID()

-- name: shut
-- The connection for the mailbox gets the lock for which the sleeper will wait. It gives back the one that it had for the sleeper before.
SELECT RELEASE_LOCK(_utf8mb4 ?), GET_LOCK(_utf8mb4 ?, 0)

-- name: open
SELECT RELEASE_LOCK(_utf8mb4 ?)

-- name: sleep
-- The lock of the last sleep goes. The lock of this one shows that the statement has begun: from then on, a KILL QUERY ends it. Then the
-- session waits for a lock that another session has. In MariaDB all that wait in SLEEP share one mutex, and a KILL QUERY that finds it locked tries again
-- after 50 ms: with 20 sleepers that took two seconds. Whoever waits for a lock has a mutex of its own.
SELECT RELEASE_LOCK(_utf8mb4 ?), IF(GET_LOCK(_utf8mb4 ?, 0) = 1, GET_LOCK(_utf8mb4 ?, ?), 0)

-- name: asleep
SELECT IS_USED_LOCK(_utf8mb4 ?), IS_USED_LOCK(_utf8mb4 ?)

-- name: committed
-- This result comes after COMMIT, and before the wake. If it has arrived, the transaction is committed, and an error is one of the wake.
SELECT 1

-- name: wake
-- One statement finds the session and kills its query. It is the session that has the lock now, so no number of a session is ever old. It
-- fails if no session has the lock.
KILL QUERY IS_USED_LOCK(_utf8mb4 ?)

-- name: leave_bed
KILL CONNECTION IS_USED_LOCK(_utf8mb4 ?)

-- name: long_sleep
-- The session's sleeps are not slow queries.
SET SESSION long_query_time = 3600

-- name: confirm
-- A change of nothing. Its commit brings the log to the disk up to here.
INSERT INTO locksidecar_letters (mailbox, name, base, body, sent_at) VALUES (X'', X'', 0, X'', 0)

-- name: confirmed
DELETE FROM locksidecar_letters WHERE id = LAST_INSERT_ID()

-- name: old_letters
SELECT id FROM locksidecar_letters WHERE sent_at < {now} - ? LIMIT ?

-- name: old_leases
SELECT id FROM locksidecar_leases WHERE expires_at < {now} - ? LIMIT ?

-- name: lower_ttl
-- The longest TTL of the past is forgotten if nobody has used it for long.
UPDATE locksidecar_meta SET longest_ttl = COALESCE((SELECT MAX(ttl) FROM locksidecar_leases WHERE instance <> ''), 0), longest_at = {now}
WHERE id = 1 AND longest_ttl > 0 AND longest_at < {now} - ?

-- name: settings
SHOW VARIABLES WHERE Variable_name IN ('version', 'server_id', 'server_uuid', 'read_only', 'super_read_only', 'wsrep_on', 'log_bin',
    'binlog_format', 'sql_select_limit', 'sync_binlog', 'innodb_flush_log_at_trx_commit', 'max_allowed_packet')

-- name: tables
-- An escape of its own, because a backslash is none where sql_mode has NO_BACKSLASH_ESCAPES.
SELECT table_name, engine FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name LIKE 'locksidecar!_%' ESCAPE '!'

-- name: meta
SELECT schema_version, oldest, server, server = {server}, began, outdated FROM locksidecar_meta WHERE id = 1

-- name: began
SELECT began FROM locksidecar_meta WHERE id = 1

-- name: outdate
-- Sidecars that know no later server than this one then grant and renew nothing here either.
UPDATE locksidecar_meta SET outdated = GREATEST(outdated, ?) WHERE id = 1 AND began < ?

-- name: new_history
-- Another server writes from now on, and it may have forgotten grants. Nothing is granted until nobody believes in them.
-- Versions are then above the forgotten ones if the clocks of the two servers differ by less than the margin. A floor that is
-- ahead of the clock grows by the age of the history, so that it differs between two replicas that are promoted.
UPDATE locksidecar_meta SET
    quiet_until = IF(? = 0, quiet_until, GREATEST(quiet_until, {now} + GREATEST(longest_ttl, ?,
        COALESCE((SELECT MAX(ttl) FROM locksidecar_leases WHERE instance <> ''), 0)))),
    token_floor = IF(token_floor > {now}, token_floor + GREATEST(0, {now} - began), {now}) + ?, history = ?,
    began = GREATEST(began + 1, outdated + 1, ? + 1, {now}), server = {server}
WHERE id = 1 AND server = ?
