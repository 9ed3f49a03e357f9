-- Notes that a sidecar knows all that rides on its leases, in this history. One that
-- somebody has locked is named again by the next renewal.
-- $1 leases, $2 history
WITH due AS (
    SELECT id FROM locksidecar.leases WHERE id = ANY ($1) ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE locksidecar.leases l SET history = $2 FROM due WHERE l.id = due.id
