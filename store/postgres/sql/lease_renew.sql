-- Renews leases that are alive, whatever the number of their locks. An expired one
-- is never revived: somebody may be burying it in this moment (invariant 3). Nor one
-- that stands: it ends with its hold. What somebody has locked is left out, for who has
-- locked one lease must not wait for another: others lock leases in any order. With it
-- comes whether a lease's holders are asked for something, whether this sidecar has
-- become too old for the schema, or the schema too old for it (an older one was restored), and
-- whether what rides on the lease must be counted again. A
-- server that was just promoted renews nothing (see history): what a sidecar hears of a
-- lease would else not tell it that there was a failover. It asks before it locks anything,
-- for new_epoch, which somebody else may begin in this moment, passes by what is locked.
-- $1 leases
WITH here AS MATERIALIZED (
    SELECT locksidecar.history() AS history
), due AS (
    SELECT id FROM locksidecar.leases
    WHERE id = ANY ($1) AND expires_at > clock_timestamp() AND NOT standing AND (SELECT history FROM here) IS NOT NULL
    ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE locksidecar.leases l
SET expires_at = greatest(clock_timestamp() + l.ttl, l.hold_until)
FROM due
WHERE l.id = due.id AND l.expires_at > clock_timestamp() AND NOT l.standing
RETURNING l.id, clock_timestamp(), EXISTS (SELECT FROM locksidecar.signals g WHERE g.lease_id = l.id),
    (SELECT NOT :schema_version BETWEEN oldest_version AND schema_version FROM locksidecar.meta),
    (SELECT history FROM here), l.history IS DISTINCT FROM (SELECT history FROM here)
