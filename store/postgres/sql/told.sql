-- Notes that another instance than the first is told of a bind:ttl grant: none may give
-- it back as untold then. No row: it is over. The lock row decides, also against a
-- release that is under way.
-- $1 namespace, $2 key, $3 grant
WITH held AS (
    SELECT lease_id FROM locksidecar.locks WHERE namespace = $1 AND key = $2 AND grant_id = $3 FOR UPDATE
)
UPDATE locksidecar.leases l SET repeated = true FROM held
WHERE l.id = held.lease_id AND l.expires_at > clock_timestamp() AND NOT l.standing
RETURNING true
