-- name: signal
-- Sends requests to the holders of keys: see the function.
-- $1 namespace, $2 not after, $3 keys, $4 tokens (0: any), $5 kinds, $6 reasons
SELECT ord, held, token, watched, stopping, notify, again, reaped, hints, hint_instances FROM locksidecar.signal($1, $2, $3, $4, $5, $6)

-- name: signals_of
-- Returns requests to holders under some leases, the oldest first. Each renewal tells that there
-- are more. Nobody holds a lock under a dead lease.
-- $1 leases, $2 limit
SELECT g.id, g.kind, g.key, g.token, g.reason, g.requested_at
FROM locksidecar.signals g
WHERE g.lease_id = ANY ($1) AND EXISTS (SELECT FROM locksidecar.leases s WHERE s.id = g.lease_id)
ORDER BY g.id
LIMIT $2

-- name: signals_acknowledged
-- Deletes signals that were read. A locked one is being replaced or dropped.
-- $1 signals
DELETE FROM locksidecar.signals
WHERE id IN (SELECT id FROM locksidecar.signals WHERE id = ANY ($1) ORDER BY id FOR UPDATE SKIP LOCKED)
