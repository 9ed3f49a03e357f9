-- lease_renew for one lease, for which it waits.
-- $1 lease
UPDATE locksidecar.leases l
SET expires_at = greatest(clock_timestamp() + l.ttl, l.hold_until)
WHERE l.id = $1 AND l.expires_at > clock_timestamp() AND NOT l.standing
RETURNING l.id, clock_timestamp(), EXISTS (SELECT FROM locksidecar.signals g WHERE g.lease_id = l.id)
