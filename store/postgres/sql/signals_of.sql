-- What holders under some leases are asked for, the oldest first. A renewal tells that
-- there is more. Nobody holds anything under a lease that is dead, or stands.
-- $1 leases, $2 limit
SELECT g.id, g.kind, g.key, g.token, g.reason, g.requested_at
FROM locksidecar.signals g
WHERE g.lease_id = ANY ($1) AND EXISTS (SELECT FROM locksidecar.leases s WHERE s.id = g.lease_id AND NOT s.standing)
ORDER BY g.id
LIMIT $2
