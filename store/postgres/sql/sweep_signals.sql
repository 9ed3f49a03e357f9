-- Forgets what dead leases were asked for, and what was watched under them, where a
-- burial missed it. A lease that this snapshot misses is dead: one that is opened later
-- than a row that names it does not exist.
-- $1 advisory lock, $2 limit of each
WITH unwatched AS (
    DELETE FROM locksidecar.watchers
    WHERE (namespace, key, lease_id) IN (
        SELECT w.namespace, w.key, w.lease_id FROM locksidecar.watchers w
        WHERE (SELECT pg_try_advisory_xact_lock($1))
        AND NOT EXISTS (SELECT FROM locksidecar.leases s WHERE s.id = w.lease_id)
        LIMIT $2 FOR UPDATE SKIP LOCKED)
    RETURNING true
), unheard AS (
    DELETE FROM locksidecar.signals
    WHERE id IN (
        SELECT g.id FROM locksidecar.signals g
        WHERE (SELECT pg_try_advisory_xact_lock($1))
        AND NOT EXISTS (SELECT FROM locksidecar.leases s WHERE s.id = g.lease_id)
        LIMIT $2 FOR UPDATE SKIP LOCKED)
    RETURNING true
)
SELECT greatest((SELECT count(*) FROM unwatched), (SELECT count(*) FROM unheard))
