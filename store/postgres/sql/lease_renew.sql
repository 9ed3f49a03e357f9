-- Renews leases that are alive, whatever the number of their locks. An expired one
-- is never revived: somebody may be burying it in this moment (invariant 3). Nor one
-- that stands: it ends with its hold. What somebody has locked is left out, for who has
-- locked one lease must not wait for another: others lock leases in any order. With it
-- comes whether a lease's holders are asked for something.
-- $1 leases
WITH due AS (
    SELECT id FROM locksidecar.leases
    WHERE id = ANY ($1) AND expires_at > clock_timestamp() AND NOT standing
    ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE locksidecar.leases l
SET expires_at = greatest(clock_timestamp() + l.ttl, l.hold_until)
FROM due
WHERE l.id = due.id AND l.expires_at > clock_timestamp() AND NOT l.standing
RETURNING l.id, clock_timestamp(), EXISTS (SELECT FROM locksidecar.signals g WHERE g.lease_id = l.id)
