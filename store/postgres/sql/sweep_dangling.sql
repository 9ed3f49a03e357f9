-- Keys that are held by dead leases. A lease that this snapshot misses was deleted:
-- one is never inserted after a lock that rides on it is seen. Each is handed off or
-- freed by that named lease, never because "no living lease" has it (invariant 1).
-- $1 advisory lock: one sweeper at a time, $2 limit
SELECT l.namespace, l.key, l.lease_id
FROM locksidecar.locks l
WHERE (SELECT pg_try_advisory_xact_lock($1))
AND l.lease_id IS NOT NULL
AND NOT EXISTS (SELECT FROM locksidecar.leases s WHERE s.id = l.lease_id)
LIMIT $2
