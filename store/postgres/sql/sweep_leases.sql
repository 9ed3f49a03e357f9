-- Buries leases that expired a while ago.
-- $1 advisory lock, $2 expired for so long, $3 limit
DELETE FROM locksidecar.leases
WHERE id IN (
    SELECT id FROM locksidecar.leases
    WHERE (SELECT pg_try_advisory_xact_lock($1)) AND expires_at < clock_timestamp() - $2::interval
    AND locksidecar.in_epoch()
    ORDER BY id LIMIT $3 FOR UPDATE SKIP LOCKED)
RETURNING id
