-- Which of some keys' rows somebody has locked in this moment. It never waits, and
-- what it locks itself it lets go at once.
-- $1 namespaces, $2 keys
WITH asked AS (
    SELECT l.namespace, l.key FROM locksidecar.locks l, unnest($1::text[], $2::text[]) AS a (namespace, key)
    WHERE l.namespace = a.namespace AND l.key = a.key
), free AS MATERIALIZED (
    SELECT l.namespace, l.key FROM locksidecar.locks l, unnest($1::text[], $2::text[]) AS a (namespace, key)
    WHERE l.namespace = a.namespace AND l.key = a.key
    FOR UPDATE OF l SKIP LOCKED
)
SELECT namespace, key FROM asked
EXCEPT
SELECT namespace, key FROM free
