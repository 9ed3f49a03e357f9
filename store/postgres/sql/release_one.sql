-- Releases one session's lock for which nobody waits, and about which there is nothing
-- else to think of. No row: the function decides.
-- A row that becomes contended while this waits for it is checked again, and left
-- (invariant 5).
-- $1 namespace, $2 key, $3 token, $4 lease
UPDATE locksidecar.locks l
SET lease_id = NULL, grant_id = NULL, freed_at = clock_timestamp()
FROM locksidecar.leases s
WHERE l.namespace = $1 AND l.key = $2 AND l.token = $3 AND l.lease_id = $4 AND NOT l.contended AND l.stopping IS NULL
AND s.id = $4 AND s.renewed AND s.expires_at > clock_timestamp() AND s.hold_until IS NULL
RETURNING l.key, l.watched
