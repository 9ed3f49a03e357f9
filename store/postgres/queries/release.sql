-- name: release_one
-- Releases one session's lock for which nobody waits, and about which there is nothing
-- else to think of. No row: the function decides.
-- A row that becomes contended while this waits for it is checked again, and left
-- (invariant 5).
-- $1 namespace, $2 key, $3 token, $4 lease
UPDATE locksidecar.locks l
SET lease_id = NULL, grant_id = NULL, freed_at = clock_timestamp()
FROM locksidecar.leases s
WHERE l.namespace = $1 AND l.key = $2 AND l.token = $3 AND l.lease_id = $4 AND NOT l.contended AND l.stopping IS NULL
AND s.id = $4 AND s.renewed AND s.expires_at > clock_timestamp() AND s.hold_until IS NULL
RETURNING l.key, l.watched

-- name: release_many
-- release_one for many keys. The rows are locked first, in the order of the keys, for
-- an UPDATE has no order; then they are updated where they were found. Each key is
-- looked up by itself, so that the order is kept and no plan can scan the table. A
-- row that changed while this waited for it is left out: the function decides. Leases are
-- few, so they are read once; whether one lives is judged when the row's lock is had.
-- $1 namespace, $2 keys, $3 tokens, $4 leases
WITH own AS MATERIALIZED (
    SELECT id, expires_at FROM locksidecar.leases
    WHERE id = ANY ($4::uuid[]) AND renewed AND hold_until IS NULL
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
SET lease_id = NULL, grant_id = NULL, freed_at = clock_timestamp()
FROM locked s, own o
WHERE l.ctid = s.at AND l.token = s.token AND l.lease_id = s.lease_id AND NOT l.contended AND l.stopping IS NULL
AND o.id = s.lease_id AND o.expires_at > s.had
RETURNING l.key, l.watched

-- name: release
-- Frees, hands off or keeps locks, and marks waiters that are skipped (invariant 5):
-- see the function.
-- $1 namespace, $2 instance, $3 keys, $4 tokens, $5 leases, $6 undelivered, $7 success?, $8 results, $9 ignore holds?,
-- $10 trace contexts
SELECT ord, state, token, lease_id, acquired_at, traceparent, now,
    outcome, expired, next_grant, next_lease, next_instance, next_token, next_acquired_at, next_expires_at,
    hints, hint_instances, watched
FROM locksidecar.release($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)

-- name: notify_grants
-- Tells the instances to which keys were handed of the grants. It follows the release that
-- did so, in the same flush, in a transaction of its own: that one is committed when this
-- one reads what it wrote (invariant 4), and the disk is not waited for while the lock
-- that NOTIFY takes on the whole server is held. See grantOf for what the word of a grant
-- is. Only a session's grant under its waiter's own renewed lease, and whose id is random
-- (version 4), is told whole; otherwise the waiter is told to look. So it is when the
-- release took long: perhaps its wait for a standby was cancelled. The look waits for one.
-- $1 namespace, $2 instance, $3 keys, $4 tokens that ended, $5 what is long
SELECT pg_notify(locksidecar.channel($1, s.instance), CASE
    WHEN s.renewed AND s.hold_until IS NULL AND substr(l.grant_id::text, 15, 1) = '4'
        AND clock_timestamp() < l.acquired_at + $5 THEN concat_ws(',',
        'granted:' || l.grant_id, l.token, (extract(epoch FROM l.acquired_at) * 1000000)::bigint,
        (extract(epoch FROM s.expires_at) * 1000000)::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
        l.handed_by)
    ELSE 'look:' || left(l.grant_id::text, 18) END)
FROM unnest($3::text[], $4::bigint[]) AS c (key, token)
CROSS JOIN LATERAL (SELECT * FROM locksidecar.locks WHERE namespace = $1 AND key = c.key OFFSET 0) l
CROSS JOIN LATERAL (SELECT * FROM locksidecar.leases WHERE id = l.lease_id OFFSET 0) s
WHERE l.token > c.token AND l.grant_id IS NOT NULL AND s.instance <> $2
AND set_config('synchronous_commit', 'off', true) IS NOT NULL

-- name: amend
-- Checks claims and changes data and remaining times: see the function.
-- $1 namespace, $2 not after, $3 keys, $4 tokens, $5 leases, $6 ttls (0: unchanged), $7 replace the data?, $8 datas
SELECT ord, state,
    token, acquired_at, expires_at, now, lease_id, instance, pod, renewed, hold_pending,
    session, owner, data, traceparent, stopping, stop_reason, grant_id, waiting,
    hints, hint_instances
FROM locksidecar.amend($1, $2, $3, $4, $5, $6, $7, $8)
