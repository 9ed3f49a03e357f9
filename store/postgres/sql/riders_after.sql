-- What rides on leases among the 2,000 keys behind one, and, before the first, who stands in
-- line under them: what a sidecar looks for that it does not know, after a failover. A
-- lock keeps its key, so none is passed over that is there all the time. All sidecars look,
-- at the same time, and one reads at a time: the others get no rows, and try again.
-- Where the planner knows nothing of the table, as in one that was just restored, it takes few
-- rows to be of one namespace, and would read and sort all behind the key to give the first.
-- Of a range it expects many, and reads the index in its order where many are there.
-- $1 namespace, $2 after, $3 leases, $4 advisory lock
WITH mine AS MATERIALIZED (
    SELECT pg_try_advisory_xact_lock($4) AS turn
), part AS MATERIALIZED (
    SELECT key, lease_id, token, grant_id FROM locksidecar.locks
    WHERE (SELECT turn FROM mine) AND (namespace, key) > ($1, $2) AND namespace <= $1
    ORDER BY namespace, key LIMIT 2000
)
SELECT m.history, r.lease_id, r.key, r.token, r.grant_id, r.waits,
    (SELECT turn FROM mine), (SELECT key FROM part ORDER BY key OFFSET 1999)
FROM locksidecar.meta m
LEFT JOIN (
    SELECT lease_id, key, token, grant_id, false AS waits FROM part WHERE lease_id = ANY ($3)
    UNION ALL
    SELECT lease_id, key, 0, grant_id, true FROM locksidecar.waiters
    WHERE $2 = '' AND (SELECT turn FROM mine) AND lease_id = ANY ($3)
) r ON true
