-- The keys that dead leases hold and somebody waits for: they are to be handed off
-- (invariant 5). In a statement after the burial's commit it sees every waiter
-- that was inserted while the lease lived. It looks at the only keys that they may hold;
-- where one may hold any, at all for which somebody waits.
-- $1 dead leases, $2 namespaces, $3 keys that they may hold; both null: any
SELECT l.namespace, l.key, l.lease_id
FROM (
    (SELECT DISTINCT namespace, key FROM locksidecar.waiters WHERE $2::text[] IS NULL AND outcome IS NULL)
    UNION ALL
    SELECT k.namespace COLLATE "C", k.key COLLATE "C"
    FROM unnest($2::text[], $3::text[]) AS k (namespace, key)
    CROSS JOIN LATERAL (
        SELECT FROM locksidecar.waiters
        WHERE namespace = k.namespace AND key = k.key AND outcome IS NULL LIMIT 1) waits
) w
CROSS JOIN LATERAL (
    SELECT * FROM locksidecar.locks WHERE namespace = w.namespace AND key = w.key OFFSET 0) l
WHERE l.lease_id = ANY ($1)
