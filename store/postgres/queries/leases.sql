-- name: lease_open
-- Makes renewed leases. A repeat extends one that is still alive, and gives no row
-- for one that is not; nor when it comes too late: a buried lease must not rise again.
-- $1 leases, $2 ttls, $3 instance, $4 pod, $5 not after
INSERT INTO locksidecar.leases AS l (id, instance, pod, renewed, ttl, expires_at, history)
SELECT id, $3, $4, true, ttl, clock_timestamp() + ttl, (SELECT locksidecar.history())
FROM unnest($1::uuid[], $2::interval[]) AS a (id, ttl)
WHERE clock_timestamp() < $5
ORDER BY id
ON CONFLICT (id) DO UPDATE SET expires_at = greatest(clock_timestamp() + l.ttl, l.hold_until)
WHERE l.expires_at > clock_timestamp() AND NOT l.hold_pending
RETURNING l.id

-- name: lease_renew
-- Renews leases that are alive, whatever the number of their locks. An expired one
-- is never revived: somebody may be burying it in this moment (invariant 3). Nor one
-- that stands: it ends with its hold. What somebody has locked is left out, for who has
-- locked one lease must not wait for another: others lock leases in any order. With it
-- comes whether a lease's holders are asked for something, whether this sidecar has
-- become too old for the schema, or the schema too old for it (an older one was restored), and
-- whether what rides on the lease must be counted again. A
-- server that was just promoted renews nothing (see history): what a sidecar hears of a
-- lease would else not tell it that there was a failover. It asks before it locks anything,
-- for new_epoch, which somebody else may begin in this moment, passes by what is locked.
-- $1 leases
WITH here AS MATERIALIZED (
    SELECT locksidecar.history() AS history
), due AS (
    SELECT id FROM locksidecar.leases
    WHERE id = ANY ($1) AND expires_at > clock_timestamp() AND NOT hold_pending AND (SELECT history FROM here) IS NOT NULL
    ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE locksidecar.leases l
SET expires_at = greatest(clock_timestamp() + l.ttl, l.hold_until)
FROM due
WHERE l.id = due.id AND l.expires_at > clock_timestamp() AND NOT l.hold_pending
RETURNING l.id, clock_timestamp(), EXISTS (SELECT FROM locksidecar.signals g WHERE g.lease_id = l.id),
    (SELECT NOT :schema_version BETWEEN oldest_version AND schema_version FROM locksidecar.meta),
    (SELECT history FROM here), l.history IS DISTINCT FROM (SELECT history FROM here)

-- name: lease_renew_one
-- lease_renew for one lease, for which it waits.
-- $1 lease
WITH here AS MATERIALIZED (
    SELECT locksidecar.history() AS history
)
UPDATE locksidecar.leases l
SET expires_at = greatest(clock_timestamp() + l.ttl, l.hold_until)
WHERE l.id = $1 AND l.expires_at > clock_timestamp() AND NOT l.hold_pending AND (SELECT history FROM here) IS NOT NULL
RETURNING l.id, clock_timestamp(), EXISTS (SELECT FROM locksidecar.signals g WHERE g.lease_id = l.id),
    (SELECT NOT :schema_version BETWEEN oldest_version AND schema_version FROM locksidecar.meta),
    (SELECT history FROM here), l.history IS DISTINCT FROM (SELECT history FROM here)

-- name: lease_living
-- Which leases live and can be renewed. One that was not, although it is among them, is
-- locked by somebody, or was.
-- $1 leases
SELECT id FROM locksidecar.leases WHERE id = ANY ($1) AND expires_at > clock_timestamp() AND NOT hold_pending

-- name: held_under
-- Which of some keys' locks ride on leases, and who stands in line for them under the leases:
-- what a sidecar believes in, after a failover. There is no index of leases for it, since
-- that would make every grant dearer. Each key is looked up by itself, so that no plan can
-- scan the table.
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
-- What rides on leases among the 2,000 keys behind one, and, before the first, who stands in
-- line under them: what a sidecar looks for that it does not know, after a failover. A
-- lock keeps its key, so none is passed over that is there all the time. All sidecars look,
-- at the same time, and one reads at a time: the others get no rows, and try again.
-- Where the planner knows nothing of the table, as in one that was just restored, it takes few
-- rows to be of one namespace, and would read and sort all behind the key to give the first.
-- Of a range it expects many, and reads the index in its order where many are there.
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
-- Notes that a sidecar knows all that rides on its leases, in this history. One that
-- somebody has locked is named again by the next renewal.
-- $1 leases, $2 history
WITH due AS (
    SELECT id FROM locksidecar.leases WHERE id = ANY ($1) ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE locksidecar.leases l SET history = $2 FROM due WHERE l.id = due.id
