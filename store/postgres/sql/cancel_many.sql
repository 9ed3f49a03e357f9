-- Takes waiters out of their queues without waiting for any: one that somebody has
-- locked is being granted or dropped, and is looked at alone. It tells the places
-- that they had, and of those that were skipped, which are forgotten, their results.
-- A place that another instance keeps, because the attempt was repeated there, stays.
-- $1 namespace, $2 grants, $3 not after, $4 instance
DELETE FROM locksidecar.waiters w
WHERE id IN (
    SELECT id FROM locksidecar.waiters c
    WHERE namespace = $1 AND grant_id = ANY ($2) AND clock_timestamp() < $3
    AND NOT EXISTS (SELECT FROM locksidecar.leases o WHERE o.id = c.lease_id AND o.instance <> $4)
    ORDER BY id FOR UPDATE SKIP LOCKED)
RETURNING grant_id, outcome IS NOT NULL, result, (
    SELECT count(*)::integer FROM locksidecar.waiters q
    WHERE q.namespace = w.namespace AND q.key = w.key AND q.id <= w.id AND q.outcome IS NULL)
