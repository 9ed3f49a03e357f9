-- The first in line for the keys of leases that stand since now: they were told that
-- those end later. It sees every waiter that was inserted before they stood. Who buried
-- them and is cut off before this tells nobody, and nobody does it instead, for they
-- stand already: who waits then finds it with the check of its next renewal interval.
-- $1 leases, $2 namespaces, $3 keys that they may hold; both null: any
SELECT l.namespace, f.hints, f.hint_instances
FROM (
    (SELECT DISTINCT namespace, key FROM locksidecar.waiters WHERE $2::text[] IS NULL AND outcome IS NULL)
    UNION ALL
    SELECT k.namespace COLLATE "C", k.key COLLATE "C" FROM unnest($2::text[], $3::text[]) AS k (namespace, key)
) w
CROSS JOIN LATERAL (
    SELECT * FROM locksidecar.locks WHERE namespace = w.namespace AND key = w.key OFFSET 0) l
CROSS JOIN LATERAL locksidecar.first_in_line(l.namespace, l.key, 100) f
WHERE l.lease_id = ANY ($1) AND f.hints IS NOT NULL
