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

-- name: notify_grants
-- Sends grants to the instances whose waiters got the keys. It follows the release in the same flush, as a
-- transaction of its own. So it reads committed rows (promise 4), and NOTIFY's lock on the whole server is
-- not held during a flush. grantOf parses the notification. Only a session's grant under its waiter's own
-- renewed lease, with a random id (version 4), is sent in full, with the first halves of its cohort's ids.
-- Otherwise, or if the release took long, the waiter gets a hint: see doc.go.
-- $1 namespace, $2 instance, $3 keys, $4 tokens that ended, $5 a long release
SELECT pg_notify(locksidecar.channel($1, s.instance), CASE
    WHEN s.renewed AND substr(l.attempt_id::text, 15, 1) = '4'
        AND clock_timestamp() < l.acquired_at + $5 THEN concat_ws(',',
        'granted:' || l.attempt_id, l.token, (extract(epoch FROM l.acquired_at) * 1000000)::bigint,
        (extract(epoch FROM greatest(s.expires_at, l.hold_until)) * 1000000)::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
        l.handed_by, (SELECT coalesce(string_agg(left(id::text, 18), '+' ORDER BY n), '')
            FROM unnest(locksidecar.cohort($1, c.key)) WITH ORDINALITY AS u (id, n)))
    ELSE 'look:' || left(l.attempt_id::text, 18) END)
FROM unnest($3::text[], $4::bigint[]) AS c (key, token)
CROSS JOIN LATERAL (SELECT * FROM locksidecar.locks WHERE namespace = $1 AND key = c.key OFFSET 0) l
CROSS JOIN LATERAL (SELECT * FROM locksidecar.leases WHERE id = l.lease_id OFFSET 0) s
WHERE l.token > c.token AND l.attempt_id IS NOT NULL AND s.instance <> $2
AND set_config('synchronous_commit', 'off', true) IS NOT NULL
