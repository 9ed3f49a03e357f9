-- Deletes the waiters, watchers and signals of dead leases, if a reaping missed them. A lease that
-- this snapshot does not see is dead: none of them is inserted before its lease. The
-- sub-select looks each lease up by the index, because there may be far more leases than these
-- rows; NOT EXISTS could read them all.
-- $1 limit of each
WITH waiters AS (
    DELETE FROM locksidecar.waiters
    WHERE id IN (
        SELECT w.id FROM locksidecar.waiters w
        WHERE (SELECT true FROM locksidecar.leases s WHERE s.id = w.lease_id) IS NULL
        ORDER BY w.id LIMIT $1 FOR UPDATE SKIP LOCKED)
    RETURNING true
), watchers AS (
    DELETE FROM locksidecar.watchers
    WHERE (namespace, key, lease_id) IN (
        SELECT w.namespace, w.key, w.lease_id FROM locksidecar.watchers w
        WHERE (SELECT true FROM locksidecar.leases s WHERE s.id = w.lease_id) IS NULL
        LIMIT $1 FOR UPDATE SKIP LOCKED)
    RETURNING true
), signals AS (
    DELETE FROM locksidecar.signals
    WHERE id IN (
        SELECT g.id FROM locksidecar.signals g
        WHERE (SELECT true FROM locksidecar.leases s WHERE s.id = g.lease_id) IS NULL
        ORDER BY g.id LIMIT $1 FOR UPDATE SKIP LOCKED)
    RETURNING true
)
SELECT greatest((SELECT count(*) FROM waiters), (SELECT count(*) FROM watchers), (SELECT count(*) FROM signals))
