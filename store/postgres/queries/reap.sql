-- name: reap_one
-- Buries one lease, or lets it stand: see reap_many. It waits for a renewal, an enqueue
-- or a hand-off that is under way, and decides afterwards, by the row as it then is.
-- $1 lease, $2 true: also when it has not expired
WITH due AS MATERIALIZED (
    SELECT id, hold_pending, hold_until, coalesce(hold_until > clock_timestamp(), false) AS holds, namespace, key
    FROM locksidecar.leases
    WHERE id = $1 AND ($2 OR expires_at <= clock_timestamp() AND locksidecar.in_epoch())
    FOR UPDATE
), kept AS (
    UPDATE locksidecar.leases l SET hold_pending = true, expires_at = due.hold_until
    FROM due WHERE l.id = due.id AND due.holds AND NOT due.hold_pending
), dead AS (
    DELETE FROM locksidecar.leases l USING due WHERE l.id = due.id AND NOT due.holds
)
SELECT id, holds, holds AND NOT hold_pending, namespace, key FROM due

-- name: reap_many
-- Buries leases without waiting for any: one that somebody has locked is skipped,
-- for who deletes leases must not wait for one while it has another. One whose hold is
-- not over stands from now on until it is. Tells of each whether it stands, whether it
-- does since now, and the only key that it may have held. What "due" tells is the row as
-- it was locked; the table itself is seen here as it was when the statement began.
-- $1 leases, $2 true: also those that have not expired
WITH due AS MATERIALIZED (
    SELECT id, hold_pending, hold_until, coalesce(hold_until > clock_timestamp(), false) AS holds, namespace, key
    FROM locksidecar.leases
    WHERE id = ANY ($1) AND ($2 OR expires_at <= clock_timestamp() AND locksidecar.in_epoch())
    ORDER BY id FOR UPDATE SKIP LOCKED
), kept AS (
    UPDATE locksidecar.leases l SET hold_pending = true, expires_at = due.hold_until
    FROM due WHERE l.id = due.id AND due.holds AND NOT due.hold_pending
), dead AS (
    DELETE FROM locksidecar.leases l USING due WHERE l.id = due.id AND NOT due.holds
)
SELECT id, holds, holds AND NOT hold_pending, namespace, key FROM due

-- name: lease_existing
-- Which leases are there. One that is not is dead, for ever.
-- $1 leases
SELECT id FROM locksidecar.leases WHERE id = ANY ($1)

-- name: reap_contended
-- The keys that dead leases hold and somebody waits for: they are to be handed off
-- (invariant 5). In a statement after the burial's commit it sees every waiter
-- that was inserted while the lease lived. It looks at the only keys that they may hold;
-- where one may hold any, at all for which somebody waits.
-- $1 dead leases, $2 namespaces, $3 keys that they may hold; both null: any
SELECT l.namespace, l.key, l.lease_id
FROM (
    (SELECT DISTINCT namespace, key FROM locksidecar.waiters WHERE $2::text[] IS NULL AND outcome IS NULL)
    UNION ALL
    SELECT k.namespace COLLATE "C", k.key COLLATE "C"
    FROM unnest($2::text[], $3::text[]) AS k (namespace, key)
    CROSS JOIN LATERAL (
        SELECT FROM locksidecar.waiters
        WHERE namespace = k.namespace AND key = k.key AND outcome IS NULL LIMIT 1) waits
) w
CROSS JOIN LATERAL (
    SELECT * FROM locksidecar.locks WHERE namespace = w.namespace AND key = w.key OFFSET 0) l
WHERE l.lease_id = ANY ($1)

-- name: reap_hints
-- The first in line for the keys of leases that stand since now: they were told that
-- those end later. It sees every waiter that was inserted before they stood. Who buried
-- them and is cut off before this tells nobody, and nobody does it instead, for they
-- stand already: who waits then finds it with the check of its next renewal interval.
-- $1 leases, $2 namespaces, $3 keys that they may hold; both null: any
SELECT l.namespace, f.hints, f.hint_instances
FROM (
    (SELECT DISTINCT namespace, key FROM locksidecar.waiters WHERE $2::text[] IS NULL AND outcome IS NULL)
    UNION ALL
    SELECT k.namespace COLLATE "C", k.key COLLATE "C" FROM unnest($2::text[], $3::text[]) AS k (namespace, key)
) w
CROSS JOIN LATERAL (
    SELECT * FROM locksidecar.locks WHERE namespace = w.namespace AND key = w.key OFFSET 0) l
CROSS JOIN LATERAL locksidecar.first_waiters(l.namespace, l.key, 100) f
WHERE l.lease_id = ANY ($1) AND f.hints IS NOT NULL

-- name: reap_waiters
-- Takes the waiters of dead leases out of their queues. One that is locked is
-- being cancelled or handed over; whoever meets a dead waiter drops it.
-- $1 dead leases
DELETE FROM locksidecar.waiters
WHERE id IN (
    SELECT id FROM locksidecar.waiters WHERE lease_id = ANY ($1) ORDER BY id FOR UPDATE SKIP LOCKED)

-- name: reap_watchers
-- Forgets what was watched under dead leases. A row that is locked is being dropped by
-- somebody else, or the sweep comes after all.
-- $1 dead leases
DELETE FROM locksidecar.watchers
WHERE (namespace, key, lease_id) IN (
    SELECT namespace, key, lease_id FROM locksidecar.watchers WHERE lease_id = ANY ($1)
    FOR UPDATE SKIP LOCKED)

-- name: leases_of
-- The renewed leases of an instance.
-- $1 instance
SELECT id FROM locksidecar.leases WHERE instance = $1 AND renewed

-- name: hand_off
-- Gives keys to their first living waiters, or frees them (invariant 5): see the
-- function.
-- $1 namespaces, $2 keys, $3 leases that hold them, $4 tokens or nulls,
-- $5 trace contexts of releases, or empty
SELECT namespace, key, outcome, expired, grant_id, lease_id, instance, token, acquired_at, expires_at,
    hints, hint_instances, watched, ended, now
FROM locksidecar.hand_off_keys($1, $2, $3, $4, $5)
