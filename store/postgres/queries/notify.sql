-- name: notify
-- Sends hints to other instances. A transaction with NOTIFY locks the whole server during its
-- commit. So it writes nothing, and does not wait for the disk.
-- $1 channels, $2 payloads
SELECT pg_notify(channel, payload)
FROM unnest($1::text[], $2::text[]) AS n (channel, payload)
WHERE set_config('synchronous_commit', 'off', true) IS NOT NULL

-- name: notify_grants
-- Sends grants to the instances whose waiters got the keys. It is sent together with the release, and follows it as a
-- transaction of its own. So it reads committed rows (promise 4), and NOTIFY's lock on the whole server is
-- not held during a flush. grantOf parses the notification. Only a session's grant under its waiter's own
-- renewed lease, with a random id (version 4), is sent in full, with the first halves of its cohort's ids.
-- Otherwise, or if the release took long, the waiter gets a hint: see doc.go.
-- $1 namespace, $2 instance, $3 keys, $4 tokens that ended, $5 a long release
SELECT pg_notify(locksidecar.channel($1, s.instance), CASE
    WHEN s.renewed AND substr(l.attempt_id::text, 15, 1) = '4'
        AND clock_timestamp() < l.acquired_at + $5 THEN concat_ws(',',
        'granted:' || l.attempt_id, l.token, (extract(epoch FROM l.acquired_at) * 1000000)::bigint,
        (extract(epoch FROM greatest(s.expires_at, l.hold_until)) * 1000000)::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
        l.handed_by, (SELECT coalesce(string_agg(left(id::text, 18), '+' ORDER BY n), '')
            FROM unnest(locksidecar.cohort($1, c.key)) WITH ORDINALITY AS u (id, n)))
    ELSE 'look:' || left(l.attempt_id::text, 18) END)
FROM unnest($3::text[], $4::bigint[]) AS c (key, token)
CROSS JOIN LATERAL (SELECT * FROM locksidecar.locks WHERE namespace = $1 AND key = c.key OFFSET 0) l
CROSS JOIN LATERAL (SELECT * FROM locksidecar.leases WHERE id = l.lease_id OFFSET 0) s
WHERE l.token > c.token AND l.attempt_id IS NOT NULL AND s.instance <> $2
AND set_config('synchronous_commit', 'off', true) IS NOT NULL

-- name: notify_events
-- Sends events of watched keys to other instances, in the order of the events. A watch counts while its lease
-- exists. One row for each event and watcher. If a key has no watcher, not even the asker, its row has false.
-- As in notify, nothing is written.
-- $1 namespaces, $2 keys, $3 words, $4 and $5 namespaces and instances that know of the event already
SELECT namespace, key, instance IS NOT NULL AS watched, CASE WHEN elsewhere
    THEN pg_notify(locksidecar.channel(namespace, instance), word)::text END AS sent
FROM (
    SELECT e.namespace, e.key, e.word, w.instance, (e.namespace, w.instance) <> (e.its_namespace, e.its_instance) AS elsewhere
    FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[])
        WITH ORDINALITY AS e (namespace, key, word, its_namespace, its_instance, ord)
    LEFT JOIN LATERAL (
        SELECT DISTINCT s.instance
        FROM locksidecar.watchers w JOIN locksidecar.leases s ON s.id = w.lease_id
        WHERE w.namespace = e.namespace AND w.key = e.key OFFSET 0) w ON true
    ORDER BY e.ord OFFSET 0
) a
WHERE set_config('synchronous_commit', 'off', true) IS NOT NULL

-- name: watch
-- Watches keys: see the function.
-- $1 namespace, $2 not after, $3 keys, $4 lease, $5 instance
SELECT key, recall FROM locksidecar.watch($1, $2, $3, $4, $5)

-- name: unwatch
-- Ends watches of keys: see the function.
-- $1 not after, $2 namespaces, $3 keys, $4 instance
SELECT locksidecar.unwatch($1, $2, $3, $4)
