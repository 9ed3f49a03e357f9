-- Which of some keys' rows somebody has locked in this moment, or the leases of their
-- holds. It never waits, and what it locks itself it lets go at once.
-- $1 namespaces, $2 keys
WITH asked AS (
    SELECT l.namespace, l.key, s.id FROM unnest($1::text[], $2::text[]) AS a (namespace, key)
    JOIN locksidecar.locks l ON l.namespace = a.namespace AND l.key = a.key
    LEFT JOIN locksidecar.leases s ON s.id = l.lease_id AND s.hold_until IS NOT NULL
), free AS MATERIALIZED (
    SELECT l.namespace, l.key FROM locksidecar.locks l, unnest($1::text[], $2::text[]) AS a (namespace, key)
    WHERE l.namespace = a.namespace AND l.key = a.key
    FOR UPDATE OF l SKIP LOCKED
), free_leases AS MATERIALIZED (
    SELECT id FROM locksidecar.leases WHERE id IN (SELECT id FROM asked) FOR NO KEY UPDATE SKIP LOCKED
)
SELECT namespace, key FROM asked
WHERE (namespace, key) NOT IN (SELECT namespace, key FROM free)
OR id IS NOT NULL AND id NOT IN (SELECT id FROM free_leases)
