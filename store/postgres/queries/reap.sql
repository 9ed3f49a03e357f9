-- name: reap_many
-- Reaps expired leases, or revokes own ones, without a wait: a locked lease is skipped, because a statement
-- that deletes leases must not wait for one while it locks another. Returns the key of a lease that can hold
-- only one. "due" has the rows as they were locked; the table itself is seen as it was at the statement's
-- begin.
-- $1 leases, $2 true: also those that have not expired
WITH due AS MATERIALIZED (
    SELECT id, namespace, key FROM locksidecar.leases
    WHERE id = ANY ($1) AND ($2 OR expires_at <= clock_timestamp() AND locksidecar.in_history())
    ORDER BY id FOR UPDATE SKIP LOCKED
), dead AS (
    DELETE FROM locksidecar.leases l USING due WHERE l.id = due.id
)
SELECT id, namespace, key FROM due

-- name: reap_one
-- Does the same for one lease. It waits for a renewal, an enqueue or a hand-off that is in flight,
-- and decides by the row as it is then.
-- waits: reap_many

-- name: reap_waited
-- Reads the keys with waiters that are held under reaped leases. They must be handed off (promise 5). After
-- the commit of the reap, this sees every waiter that was inserted while the lease lived. The keys of shares
-- are handed off with or without waiters: an enqueue does not lock the leases of all holders, so its waiter may
-- not be there yet. If a min_hold keeps one of them, its lease is named.
-- $1 leases, $2 namespaces, $3 the only keys that they can hold; both null: any
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
UNION ALL
(SELECT DISTINCT ON (h.namespace, h.key) h.namespace, h.key, h.lease_id
FROM locksidecar.shares h WHERE h.lease_id = ANY ($1)
ORDER BY h.namespace, h.key, h.hold_until > clock_timestamp() DESC NULLS LAST)

-- name: reap_rest
-- Deletes waiters and watchers under reaped leases. A locked row is skipped, because another session cancels,
-- hands over or drops it, or the sweep finds it. Returns the keys that are shared, or can become so, because
-- these waiters may have blocked others.
-- $1 leases
WITH watched AS (
    DELETE FROM locksidecar.watchers
    WHERE (namespace, key, lease_id) IN (
        SELECT namespace, key, lease_id FROM locksidecar.watchers WHERE lease_id = ANY ($1)
        FOR UPDATE SKIP LOCKED)
), waited AS (
    DELETE FROM locksidecar.waiters
    WHERE id IN (
        SELECT id FROM locksidecar.waiters WHERE lease_id = ANY ($1) ORDER BY id FOR UPDATE SKIP LOCKED)
    RETURNING namespace, key
)
SELECT w.namespace, w.key, locksidecar.shared_lease()
FROM (SELECT DISTINCT namespace, key FROM waited) w
WHERE EXISTS (SELECT FROM locksidecar.locks l WHERE l.namespace = w.namespace AND l.key = w.key AND l.share_limit IS NOT NULL)
OR EXISTS (SELECT FROM locksidecar.waiters q WHERE q.namespace = w.namespace AND q.key = w.key AND q.share_limit IS NOT NULL)

-- name: lease_existing
-- Returns the leases that exist. A lease that does not is dead for ever.
-- $1 leases
SELECT id FROM locksidecar.leases WHERE id = ANY ($1)

-- name: leases_of
-- Returns the renewed leases of an instance.
-- $1 instance
SELECT id FROM locksidecar.leases WHERE instance = $1 AND renewed

-- name: hand_off
-- Gives keys to their first living waiters, or frees them (promise 5): see the function.
-- $1 namespaces, $2 keys, $3 leases that hold them, $4 tokens or nulls, $5 trace contexts of releases, or empty
SELECT namespace, key, (handed).*
FROM locksidecar.hand_off($1, $2, $3, $4, $5)
