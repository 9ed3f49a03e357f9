-- Keys that are marked as watched, and nobody watches. The function unwatch looks again
-- with each row locked.
-- $1 advisory lock, $2 limit
SELECT l.namespace, l.key
FROM locksidecar.locks l
WHERE (SELECT pg_try_advisory_xact_lock($1)) AND l.watched
AND NOT EXISTS (SELECT FROM locksidecar.watchers w WHERE w.namespace = l.namespace AND w.key = l.key)
LIMIT $2
