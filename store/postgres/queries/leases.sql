-- name: lease_open
-- Makes renewed leases. A repeat extends a lease that is still alive. It returns no row for a dead
-- one, nor if it comes too late, because a reaped lease must not exist again.
-- $1 leases, $2 ttls, $3 instance, $4 pod, $5 not after
INSERT INTO locksidecar.leases AS l (id, instance, pod, renewed, ttl, expires_at, history)
SELECT id, $3, $4, true, ttl, clock_timestamp() + ttl, (SELECT locksidecar.history())
FROM unnest($1::uuid[], $2::interval[]) AS a (id, ttl)
WHERE clock_timestamp() < $5
ORDER BY id
ON CONFLICT (id) DO UPDATE SET expires_at = clock_timestamp() + l.ttl
WHERE l.expires_at > clock_timestamp()
RETURNING l.id

-- name: lease_renew
-- Renews leases that are alive. An expired lease is never revived, because a reap can be in flight
-- (invariant 3). A locked lease is skipped: this must not
-- wait for one lease while it has another, because other statements lock leases in any order.
--
-- The answer also tells whether there are signals for the lease, whether the schema and this
-- sidecar fit each other, and whether the locks under the lease must be reconciled. A server that
-- was just promoted renews nothing (see history), so the sidecar learns of the failover. That is
-- asked before any lease is locked, because new_epoch skips locked ones.
-- $1 leases
WITH here AS MATERIALIZED (
    SELECT locksidecar.history() AS history
), due AS (
    SELECT id FROM locksidecar.leases
    WHERE id = ANY ($1) AND expires_at > clock_timestamp() AND (SELECT history FROM here) IS NOT NULL
    ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE locksidecar.leases l
SET expires_at = clock_timestamp() + l.ttl
FROM due
WHERE l.id = due.id
RETURNING l.id, clock_timestamp(), EXISTS (SELECT FROM locksidecar.signals g WHERE g.lease_id = l.id),
    (SELECT NOT :schema_version BETWEEN oldest_version AND schema_version FROM locksidecar.meta),
    (SELECT history FROM here), l.history IS DISTINCT FROM (SELECT history FROM here)

-- name: lease_renew_one
-- Does the same for one lease, and waits for it.
-- waits: lease_renew

-- name: lease_living
-- Returns the leases that live and can be renewed. One that lease_renew skipped is locked, or was.
-- $1 leases
SELECT id FROM locksidecar.leases WHERE id = ANY ($1) AND expires_at > clock_timestamp()

-- name: held_under
-- Returns which of some keys' locks are held under leases, and which waiters wait under them: what
-- a sidecar believes in after a failover. Each key is looked up by itself, so that no plan can scan
-- the table.
-- $1 namespace, $2 keys, $3 leases
SELECT m.history, r.lease_id, r.key, r.token, r.grant_id, r.waits
FROM locksidecar.meta m
LEFT JOIN (
    SELECT l.lease_id, l.key, l.token, l.grant_id, false AS waits
    FROM unnest($2::text[]) AS a (key)
    CROSS JOIN LATERAL (SELECT * FROM locksidecar.locks WHERE namespace = $1 AND key = a.key OFFSET 0) l
    WHERE l.lease_id = ANY ($3)
    UNION ALL
    SELECT w.lease_id, w.key, 0, w.grant_id, true
    FROM unnest($2::text[]) AS a (key)
    CROSS JOIN LATERAL (SELECT * FROM locksidecar.waiters WHERE namespace = $1 AND key = a.key OFFSET 0) w
    WHERE w.lease_id = ANY ($3)
) r ON true

-- name: held_under_after
-- Pages through 2,000 locks in key order, starting after a key, and returns those held under the
-- leases. The first page also returns waiters. A sidecar finds grants here that a failover brought
-- back. All sidecars read at the same time: one gets a page, and the others get no rows and try
-- again.
--
-- The second bound on the namespace makes the planner expect many rows and read the index in order.
-- Without statistics, as after a restore, it would sort all rows after the key to give the first.
-- $1 namespace, $2 after, $3 leases, $4 advisory lock
WITH mine AS MATERIALIZED (
    SELECT pg_try_advisory_xact_lock($4) AS turn
), part AS MATERIALIZED (
    SELECT key, lease_id, token, grant_id FROM locksidecar.locks
    WHERE (SELECT turn FROM mine) AND (namespace, key) > ($1, $2) AND namespace <= $1
    ORDER BY namespace, key LIMIT 2000
)
SELECT m.history, r.lease_id, r.key, r.token, r.grant_id, r.waits,
    (SELECT turn FROM mine), (SELECT key FROM part ORDER BY key OFFSET 1999)
FROM locksidecar.meta m
LEFT JOIN (
    SELECT lease_id, key, token, grant_id, false AS waits FROM part WHERE lease_id = ANY ($3)
    UNION ALL
    SELECT lease_id, key, 0, grant_id, true FROM locksidecar.waiters
    WHERE $2 = '' AND (SELECT turn FROM mine) AND lease_id = ANY ($3)
) r ON true

-- name: reconciled
-- Notes that a sidecar knows all locks under its leases in this history. The next renewal names a
-- locked lease again.
-- $1 leases, $2 history
WITH due AS (
    SELECT id FROM locksidecar.leases WHERE id = ANY ($1) ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE locksidecar.leases l SET history = $2 FROM due WHERE l.id = due.id
