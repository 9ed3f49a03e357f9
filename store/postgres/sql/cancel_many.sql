-- Takes waiters out of their queues without waiting for any: one that somebody has
-- locked is being granted or dropped, and is looked at alone.
-- $1 namespace, $2 grants
DELETE FROM locksidecar.waiters
WHERE id IN (
    SELECT id FROM locksidecar.waiters WHERE namespace = $1 AND grant_id = ANY ($2) ORDER BY id FOR UPDATE SKIP LOCKED)
RETURNING grant_id
