-- name: lease_open
-- Makes renewed leases. A repeat extends a lease that is still alive. It returns no row for a dead
-- one, nor if it comes too late, because a reaped lease must not exist again.
--
-- If a failover may forget grants under the leases, their TTLs are noted for an hour: a later failover
-- may forget the leases, too, and new_history must know for how long to be quiet. A note is renewed after
-- half of its time, so few openings write one. Other notes that have ended go at that moment. A database
-- without openings keeps its notes.
-- $1 leases, $2 ttls, $3 instance, $4 pod, $5 not after, $6 what follows a failover: see failover_forgets
WITH noted AS (
    INSERT INTO locksidecar.quiet_ttls AS n (ttl, until)
    SELECT ttl, clock_timestamp() + interval '1 hour'
    FROM unnest($2::interval[]) AS a (ttl)
    WHERE locksidecar.failover_forgets($6) AND NOT EXISTS (
        SELECT FROM locksidecar.quiet_ttls k
        WHERE k.ttl = a.ttl AND k.until > clock_timestamp() + interval '30 minutes')
    GROUP BY ttl ORDER BY ttl
    ON CONFLICT (ttl) DO UPDATE SET until = excluded.until
    RETURNING ttl
), ended AS (
    DELETE FROM locksidecar.quiet_ttls
    WHERE ttl IN (
        SELECT ttl FROM locksidecar.quiet_ttls
        WHERE until < clock_timestamp() AND ttl <> ALL ($2::interval[]) AND EXISTS (SELECT FROM noted)
        FOR UPDATE SKIP LOCKED)
)
INSERT INTO locksidecar.leases AS l (id, instance, pod, renewed, ttl, expires_at, history, quiet)
SELECT id, $3, $4, true, ttl, clock_timestamp() + ttl, (SELECT locksidecar.history()), locksidecar.failover_forgets($6)
FROM unnest($1::uuid[], $2::interval[]) AS a (id, ttl)
WHERE clock_timestamp() < $5
ORDER BY id
ON CONFLICT (id) DO UPDATE SET expires_at = clock_timestamp() + l.ttl
WHERE l.expires_at > clock_timestamp()
RETURNING l.id

-- name: lease_renew
-- Renews leases that are alive. An expired lease is never revived, because a reap can be in flight (promise
-- 2). A locked lease is skipped: this statement must not wait for one lease while it locks another, because
-- other statements lock leases in any order.
--
-- The answer also reports whether there are signals for the lease, whether the schema and this sidecar are
-- compatible, and whether the lease is older than this server's history. A server that was just promoted renews
-- nothing (see history), so the sidecar learns of the failover. This is checked before any lease is locked,
-- because new_history skips locked ones. Each renewal records whether a failover may forget grants, because an
-- operator can change that.
-- $1 leases, $2 what follows a failover: see failover_forgets
WITH here AS MATERIALIZED (
    SELECT locksidecar.history() AS history
), due AS (
    SELECT id FROM locksidecar.leases
    WHERE id = ANY ($1) AND expires_at > clock_timestamp() AND (SELECT history FROM here) IS NOT NULL
    ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE locksidecar.leases l
SET expires_at = clock_timestamp() + l.ttl, quiet = locksidecar.failover_forgets($2)
FROM due
WHERE l.id = due.id
RETURNING l.id, clock_timestamp(), EXISTS (SELECT FROM locksidecar.signals g WHERE g.lease_id = l.id),
    (SELECT NOT :schema_version BETWEEN oldest_version AND schema_version FROM locksidecar.meta),
    (SELECT history FROM here), l.history IS DISTINCT FROM (SELECT history FROM here)

-- name: lease_renew_one
-- Does the same for one lease, and waits for it: it is the text of lease_renew without its SKIP LOCKED, which queries.go makes.
-- waits: lease_renew

-- name: lease_living
-- Returns the leases that live and can be renewed. One that lease_renew skipped is locked, or was.
-- $1 leases
SELECT id FROM locksidecar.leases WHERE id = ANY ($1) AND expires_at > clock_timestamp()

-- name: held_under
-- Returns which of some keys' locks are held under leases of an instance, because a sidecar verifies its locks
-- after a failover. Each key is looked up separately, so that no plan can scan the table. If there are none,
-- one row contains only the history.
-- $1 namespace, $2 instance, $3 keys
SELECT m.history, h.id, h.key, h.token
FROM locksidecar.meta m
LEFT JOIN (
    SELECT s.id, l.key, l.token
    FROM unnest($3::text[]) AS a (key)
    CROSS JOIN LATERAL (
        SELECT key, token, lease_id FROM locksidecar.locks WHERE namespace = $1 AND key = a.key
        UNION ALL
        SELECT key, token, lease_id FROM locksidecar.shares WHERE namespace = $1 AND key = a.key OFFSET 0) l
    CROSS JOIN LATERAL (SELECT * FROM locksidecar.leases WHERE id = l.lease_id OFFSET 0) s
    WHERE s.instance = $2 AND s.renewed
) h ON true

-- name: move
-- Moves locks and waiters to another lease: see the function.
-- $1 namespace, $2 not after, $3 instance, $4 old lease, $5 new lease, $6 keys, $7 tokens, $8 attempts
SELECT ord, state FROM locksidecar.move($1, $2, $3, $4, $5, $6, $7, $8)
