-- The first in line for the keys of leases that stand since now: they were told that
-- those end later. It sees every waiter that was inserted before they stood.
-- $1 leases
SELECT l.namespace, f.hints, f.hint_instances
FROM (SELECT DISTINCT namespace, key FROM locksidecar.waiters WHERE outcome IS NULL) w
CROSS JOIN LATERAL (
    SELECT * FROM locksidecar.locks WHERE namespace = w.namespace AND key = w.key OFFSET 0) l
CROSS JOIN LATERAL locksidecar.first_in_line(l.namespace, l.key, 100) f
WHERE l.lease_id = ANY ($1) AND f.hints IS NOT NULL
