-- Takes waiters out of their queues without waiting for any: one that somebody has
-- locked is being granted or dropped, and is looked at alone. It tells the places
-- that they had, and of those that were skipped, which are forgotten, their results.
-- A place that another instance keeps, because the attempt was repeated there, stays.
-- Each line is counted once: from one of these waiters to the next.
-- $1 namespace, $2 grants, $3 not after, $4 instance
WITH gone AS MATERIALIZED (
    SELECT id, grant_id, key, outcome, result FROM locksidecar.waiters c
    WHERE namespace = $1 AND grant_id = ANY ($2) AND clock_timestamp() < $3
    AND NOT EXISTS (SELECT FROM locksidecar.leases o WHERE o.id = c.lease_id AND o.instance <> $4)
    ORDER BY id FOR UPDATE SKIP LOCKED
), deleted AS (
    DELETE FROM locksidecar.waiters WHERE id IN (SELECT id FROM gone)
)
SELECT grant_id, outcome IS NOT NULL, result, (sum(since) OVER (PARTITION BY key ORDER BY id))::integer
FROM (
    SELECT g.*, (
        SELECT count(*) FROM locksidecar.waiters q
        WHERE q.namespace = $1 AND q.key = g.key AND q.id > g.before AND q.id <= g.id AND q.outcome IS NULL) AS since
    FROM (
        SELECT *, coalesce(lag(id) OVER (PARTITION BY key ORDER BY id), (
            SELECT served FROM locksidecar.locks l WHERE l.namespace = $1 AND l.key = gone.key), 0) AS before
        FROM gone) g
) counted
