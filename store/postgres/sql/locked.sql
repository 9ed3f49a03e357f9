-- Which of some keys' rows somebody has locked in this moment, or the leases of their
-- holds, or those on which a hold is to be noted. It never waits, and what it locks itself
-- it lets go at once.
-- $1 namespaces, $2 keys, $3 own leases of who asks for a hold, or nulls
WITH asked AS (
    SELECT a.namespace, a.key, l.key IS NOT NULL AS there, s.id AS holds, own.id AS own
    FROM unnest($1::text[], $2::text[], $3::uuid[]) AS a (namespace, key, lease_id)
    LEFT JOIN locksidecar.locks l ON l.namespace = a.namespace AND l.key = a.key
    LEFT JOIN locksidecar.leases s ON s.id = l.lease_id AND s.hold_until IS NOT NULL
    LEFT JOIN locksidecar.leases own ON own.id = a.lease_id
), free AS MATERIALIZED (
    SELECT l.namespace, l.key FROM locksidecar.locks l, unnest($1::text[], $2::text[]) AS a (namespace, key)
    WHERE l.namespace = a.namespace AND l.key = a.key
    FOR UPDATE OF l SKIP LOCKED
), free_leases AS MATERIALIZED (
    SELECT id FROM locksidecar.leases WHERE id IN (SELECT holds FROM asked UNION ALL SELECT own FROM asked)
    FOR NO KEY UPDATE SKIP LOCKED
)
SELECT namespace, key FROM asked
WHERE there AND (namespace, key) NOT IN (SELECT namespace, key FROM free)
OR holds IS NOT NULL AND holds NOT IN (SELECT id FROM free_leases)
OR own IS NOT NULL AND own NOT IN (SELECT id FROM free_leases)
