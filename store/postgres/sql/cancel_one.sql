-- Takes one waiter out of its queue, and tells the place that it had. It waits for a
-- hand-off that is under way; no row then means that it may have been granted. One that
-- was skipped is forgotten, with its result.
-- A place that another instance keeps, because the attempt was repeated there, stays.
-- $1 namespace, $2 grant, $3 not after, $4 instance
DELETE FROM locksidecar.waiters w
WHERE namespace = $1 AND grant_id = $2 AND clock_timestamp() < $3
AND NOT EXISTS (SELECT FROM locksidecar.leases o WHERE o.id = w.lease_id AND o.instance <> $4)
RETURNING grant_id, outcome IS NOT NULL, result, (
    SELECT count(*)::integer FROM locksidecar.waiters q
    WHERE q.namespace = w.namespace AND q.key = w.key AND q.id <= w.id AND q.outcome IS NULL
    AND q.id > (SELECT served FROM locksidecar.locks l WHERE l.namespace = w.namespace AND l.key = w.key))
