-- Releases one session's lock for which nobody waits. No row: the function decides.
-- A row that becomes contended while this waits for it is checked again, and left
-- (invariant 5).
-- $1 namespace, $2 key, $3 token, $4 lease
UPDATE locksidecar.locks l
SET lease_id = NULL, grant_id = NULL, stopping = NULL, freed_at = clock_timestamp()
FROM locksidecar.leases s
WHERE l.namespace = $1 AND l.key = $2 AND l.token = $3 AND l.lease_id = $4 AND NOT l.contended
AND s.id = $4 AND s.renewed AND s.expires_at > clock_timestamp()
RETURNING l.key, l.token, l.acquired_at, s.expires_at, clock_timestamp(), s.id, s.instance, s.pod, s.renewed,
    l.session, l.owner, l.data, l.traceparent, 0
