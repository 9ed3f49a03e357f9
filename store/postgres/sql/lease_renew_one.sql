-- lease_renew for one lease, for which it waits.
-- $1 lease
WITH here AS MATERIALIZED (
    SELECT locksidecar.history() AS history
)
UPDATE locksidecar.leases l
SET expires_at = greatest(clock_timestamp() + l.ttl, l.hold_until)
WHERE l.id = $1 AND l.expires_at > clock_timestamp() AND NOT l.standing AND (SELECT history FROM here) IS NOT NULL
RETURNING l.id, clock_timestamp(), EXISTS (SELECT FROM locksidecar.signals g WHERE g.lease_id = l.id),
    (SELECT NOT :schema_version BETWEEN oldest_version AND schema_version FROM locksidecar.meta),
    (SELECT history FROM here), l.history IS DISTINCT FROM (SELECT history FROM here)
