-- Buries leases without waiting for any: one that somebody has locked is skipped,
-- for who deletes leases must not wait for one while it has another.
-- $1 leases, $2 true: also those that have not expired
DELETE FROM locksidecar.leases
WHERE id IN (
    SELECT id FROM locksidecar.leases
    WHERE id = ANY ($1) AND ($2 OR expires_at <= clock_timestamp() AND locksidecar.in_epoch())
    ORDER BY id FOR UPDATE SKIP LOCKED)
RETURNING id
