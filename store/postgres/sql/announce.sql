-- Tells other instances what happened to keys that they watch, in the order of the
-- events. A watch is one for as long as its lease is there. One row for each event and
-- watcher; an event of a key that nobody watches, not even who asks, has one with false.
-- As in notify, nothing is written.
-- $1 namespaces, $2 keys, $3 words, $4 own namespace, $5 own instance
SELECT namespace, key, instance IS NOT NULL AS watched, CASE WHEN elsewhere
    THEN pg_notify(locksidecar.channel(namespace, instance), word)::text END AS told
FROM (
    SELECT e.namespace, e.key, e.word, w.instance, (e.namespace, w.instance) <> ($4, $5) AS elsewhere
    FROM unnest($1::text[], $2::text[], $3::text[]) WITH ORDINALITY AS e (namespace, key, word, ord)
    LEFT JOIN LATERAL (
        SELECT DISTINCT s.instance
        FROM locksidecar.watchers w JOIN locksidecar.leases s ON s.id = w.lease_id
        WHERE w.namespace = e.namespace AND w.key = e.key OFFSET 0) w ON true
    ORDER BY e.ord OFFSET 0
) a
WHERE set_config('synchronous_commit', 'off', true) IS NOT NULL
