-- Drops waiters of dead leases that a burial missed: their enqueue was under way.
-- $1 advisory lock, $2 limit
DELETE FROM locksidecar.waiters
WHERE id IN (
    SELECT w.id FROM locksidecar.waiters w
    WHERE (SELECT pg_try_advisory_xact_lock($1))
    AND NOT EXISTS (SELECT FROM locksidecar.leases s WHERE s.id = w.lease_id)
    ORDER BY w.id LIMIT $2 FOR UPDATE SKIP LOCKED)
RETURNING true
