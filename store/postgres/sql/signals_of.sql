-- What holders under some leases are asked for, the oldest first. A renewal tells that
-- there is more.
-- $1 leases, $2 limit
SELECT g.id, g.kind, g.key, g.token, g.reason, g.requested_at
FROM locksidecar.signals g
WHERE g.lease_id = ANY ($1) AND EXISTS (SELECT FROM locksidecar.leases s WHERE s.id = g.lease_id)
ORDER BY g.id
LIMIT $2
