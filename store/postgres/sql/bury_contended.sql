-- The keys that dead leases hold and somebody waits for: they are to be handed off
-- (invariant 5). In a statement after the burial's commit it sees every waiter
-- that was inserted while the lease lived.
-- $1 dead leases
SELECT l.namespace, l.key, l.lease_id
FROM (SELECT DISTINCT namespace, key FROM locksidecar.waiters WHERE outcome IS NULL) w
CROSS JOIN LATERAL (
    SELECT * FROM locksidecar.locks WHERE namespace = w.namespace AND key = w.key OFFSET 0) l
WHERE l.lease_id = ANY ($1)
