-- Renews leases that are alive, whatever the number of their locks. An expired one
-- is never revived: somebody may be burying it in this moment (invariant 3).
-- $1 leases
WITH due AS (
    SELECT id FROM locksidecar.leases
    WHERE id = ANY ($1) AND expires_at > clock_timestamp()
    ORDER BY id FOR NO KEY UPDATE
)
UPDATE locksidecar.leases l
SET expires_at = clock_timestamp() + l.ttl
FROM due
WHERE l.id = due.id AND l.expires_at > clock_timestamp()
RETURNING l.id, clock_timestamp()
