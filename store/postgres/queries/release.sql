-- name: release_one
-- Releases one session's lock if it has no waiters and needs no further work. No row: the function decides. If
-- the row gets waiters while this waits for it, the condition is checked again and the row is left (promise
-- 5).
--
-- Unless $5 is set, the commit waits neither for the disk nor for a standby. Then a crash can forget the
-- release, and the key is held without an owner until the sidecar repeats it: see Releases in doc.go. No grant
-- depends on it (promises 1 and 3): a crash forgets a commit only with all later ones. The next grant of the
-- key is later, because it read this row, and it is flushed before it is answered. So a reported grant is
-- durable with the release before it, and with the token in the row. The setting ends with the transaction.
-- $1 namespace, $2 key, $3 token, $4 lease, $5 wait for the flush
UPDATE locksidecar.locks l
SET lease_id = NULL, attempt_id = NULL, freed_at = clock_timestamp()
FROM locksidecar.leases s
WHERE l.namespace = $1 AND l.key = $2 AND l.token = $3 AND l.lease_id = $4 AND NOT l.contended AND l.stopping IS NULL
AND l.hold_until IS NULL AND s.id = $4 AND s.renewed AND s.expires_at > clock_timestamp()
AND ($5 OR set_config('synchronous_commit', 'off', true) IS NOT NULL)
RETURNING l.key, l.watched

-- name: release_many
-- release_one for many keys. It locks the rows first, in the order of the keys, because an UPDATE
-- has no order. Each key is looked up by itself, which keeps the order and allows no scan. If a row
-- changes while this waits for it, it is left to the function. Leases are few, so they are read
-- once, and judged when the lock row is locked.
-- $1 namespace, $2 keys, $3 tokens, $4 leases, $5 wait for the flush
WITH own AS MATERIALIZED (
    SELECT id, expires_at FROM locksidecar.leases
    WHERE id = ANY ($4::uuid[]) AND renewed AND ($5 OR set_config('synchronous_commit', 'off', true) IS NOT NULL)
), locked AS MATERIALIZED (
    SELECT l.at, c.token, c.lease_id, clock_timestamp() AS had
    FROM (
        SELECT * FROM unnest($2::text[], $3::bigint[], $4::uuid[]) AS c (key, token, lease_id)
        ORDER BY key COLLATE "C"
    ) c
    CROSS JOIN LATERAL (
        SELECT ctid AS at FROM locksidecar.locks WHERE namespace = $1 AND key = c.key FOR UPDATE OFFSET 0) l
)
UPDATE locksidecar.locks l
SET lease_id = NULL, attempt_id = NULL, freed_at = clock_timestamp()
FROM locked s, own o
WHERE l.ctid = s.at AND l.token = s.token AND l.lease_id = s.lease_id AND NOT l.contended AND l.stopping IS NULL
AND l.hold_until IS NULL AND o.id = s.lease_id AND o.expires_at > s.had
RETURNING l.key, l.watched

-- name: release
-- Frees, hands off or keeps locks, and marks waiters that are skipped (promise 5): see the
-- function.
-- $1 namespace, $2 instance, $3 keys, $4 tokens, $5 leases, $6 undelivered, $7 success?, $8 results,
-- $9 ignore min_holds?, $10 trace contexts, $11 served waiters
SELECT ord, state, token, lease_id, acquired_at, traceparent, (handed).*
FROM locksidecar.release($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
