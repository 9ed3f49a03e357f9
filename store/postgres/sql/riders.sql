-- Which of some keys' locks ride on leases, and who stands in line for them under the leases:
-- what a sidecar believes in, after a failover. There is no index of leases for it, since
-- that would make every grant dearer. Each key is looked up by itself, so that no plan can
-- scan the table.
-- $1 namespace, $2 keys, $3 leases
SELECT m.history, r.lease_id, r.key, r.token, r.grant_id, r.waits
FROM locksidecar.meta m
LEFT JOIN (
    SELECT l.lease_id, l.key, l.token, l.grant_id, false AS waits
    FROM unnest($2::text[]) AS a (key)
    CROSS JOIN LATERAL (SELECT * FROM locksidecar.locks WHERE namespace = $1 AND key = a.key OFFSET 0) l
    WHERE l.lease_id = ANY ($3)
    UNION ALL
    SELECT w.lease_id, w.key, 0, w.grant_id, true
    FROM unnest($2::text[]) AS a (key)
    CROSS JOIN LATERAL (SELECT * FROM locksidecar.waiters WHERE namespace = $1 AND key = a.key OFFSET 0) w
    WHERE w.lease_id = ANY ($3)
) r ON true
