-- name: read
-- Reads keys and their holders. OFFSET 0 keeps each lookup separate, because merged into one join, it could
-- become a scan of the namespace. A server that was just promoted answers no asker, because by its clock all leases
-- could look expired, nor does an outdated one. An asker's own grant is returned when the standby has it. A min_hold
-- keeps the key after the death of the lease.
-- $1 namespace, $2 keys, $3 the asker's leases, $4 the asker's attempts, or nulls, $5 holders of a shared key at most;
-- with 0, its shares are not read
SELECT a.ord,
    a.lease_id IS NOT NULL
        AND EXISTS (SELECT FROM locksidecar.leases own WHERE own.id = a.lease_id AND own.expires_at > clock_timestamp()) AS asker_lives,
    l.lease_id AS held_under, coalesce(l.contended, false), l.handed_by,
    l.token, l.acquired_at, greatest(s.expires_at, l.hold_until), clock_timestamp(), s.id,
    coalesce(s.instance, l.hold_instance), coalesce(s.pod, l.hold_pod), s.renewed,
    l.hold_until > clock_timestamp() AND (s.expires_at > clock_timestamp()) IS NOT TRUE, l.keepable,
    l.session, l.owner, l.data, l.traceparent, l.stopping, l.stop_reason, l.attempt_id,
    CASE WHEN l.contended THEN (
        SELECT count(*) FROM locksidecar.waiters q WHERE q.namespace = $1 AND q.key = a.key AND q.id > l.queue_after AND q.outcome IS NULL) ELSE 0 END AS waiting,
    CASE WHEN l.share_limit IS NOT NULL THEN l.share_limit WHEN l.contended THEN locksidecar.waiting_limit($1, a.key, l.queue_after) END, NULL::integer AS slot,
    CASE WHEN l.share_limit IS NOT NULL AND $5::bigint > 0 THEN locksidecar.shown($1, a.key, $5, true, NULL) END
FROM unnest($2::text[], $3::uuid[], $4::uuid[]) WITH ORDINALITY AS a (key, lease_id, attempt_id, ord)
LEFT JOIN LATERAL (SELECT * FROM locksidecar.locks WHERE namespace = $1 AND key = a.key OFFSET 0) l ON true
LEFT JOIN LATERAL (SELECT * FROM locksidecar.leases WHERE id = l.lease_id OFFSET 0) s ON true
WHERE ($4::uuid[] IS NULL OR (SELECT locksidecar.in_history()))
AND CASE WHEN l.attempt_id = a.attempt_id THEN locksidecar.replicated() ELSE true END

-- name: list
-- Lists held locks in the order of their keys. Both bounds are conditions on the index, so the scan
-- begins after the last page and ends with the prefix. A shared key is held by any of its shares. Without an
-- instance, a key is only kept for its waiters until the end of a quiet time (hold_quiet).
-- $1 namespace, $2 after, $3 prefix, $4 first key after the prefix, $5 instance or empty, $6 limit, $7 holders of a
-- shared key at most
SELECT l.key,
    l.token, l.acquired_at, greatest(s.expires_at, l.hold_until), clock_timestamp(), s.id,
    coalesce(s.instance, l.hold_instance), coalesce(s.pod, l.hold_pod), s.renewed,
    l.hold_until > clock_timestamp() AND (s.expires_at > clock_timestamp()) IS NOT TRUE, l.keepable,
    l.session, l.owner, l.data, l.traceparent, l.stopping, l.stop_reason, l.attempt_id,
    CASE WHEN l.contended THEN (
        SELECT count(*) FROM locksidecar.waiters q WHERE q.namespace = $1 AND q.key = l.key AND q.id > l.queue_after AND q.outcome IS NULL) ELSE 0 END AS waiting,
    CASE WHEN l.share_limit IS NOT NULL THEN l.share_limit WHEN l.contended THEN locksidecar.waiting_limit($1, l.key, l.queue_after) END, NULL::integer AS slot,
    CASE WHEN l.share_limit IS NOT NULL THEN locksidecar.shown($1, l.key, $7, true, NULL) END
FROM locksidecar.locks l
LEFT JOIN locksidecar.leases s ON s.id = l.lease_id
WHERE l.namespace = $1 AND l.key > $2 AND l.key >= $3 AND l.key < $4
AND CASE WHEN l.share_limit IS NULL THEN
    greatest(s.expires_at, l.hold_until) > clock_timestamp() AND coalesce(s.instance, l.hold_instance) IS NOT NULL
    AND ($5 = '' OR coalesce(s.instance, l.hold_instance) = $5)
ELSE EXISTS (
    SELECT FROM locksidecar.shares h LEFT JOIN locksidecar.leases o ON o.id = h.lease_id
    WHERE h.namespace = $1 AND h.key = l.key AND greatest(o.expires_at, h.hold_until) > clock_timestamp()
    AND ($5 = '' OR coalesce(o.instance, h.hold_instance) = $5)) END
ORDER BY l.key
LIMIT $6

-- name: list_as_reader
-- Is list, for a role that may only read (locksidecar_reader): without tokens, data and ids of attempts. It names
-- all columns, because the role has no right to the others.
-- $1 namespace, $2 after, $3 first key, $4 first key after the last one, $5 instance or empty, $6 limit, $7 holders of a
-- shared key at most
SELECT l.key,
    NULL::bigint AS token, l.acquired_at, greatest(s.expires_at, l.hold_until), clock_timestamp(), s.id,
    coalesce(s.instance, l.hold_instance), coalesce(s.pod, l.hold_pod), s.renewed,
    l.hold_until > clock_timestamp() AND (s.expires_at > clock_timestamp()) IS NOT TRUE, l.keepable,
    l.session, l.owner, NULL::text AS data, l.traceparent, l.stopping, l.stop_reason, NULL::uuid AS attempt_id,
    CASE WHEN l.contended THEN (
        SELECT count(*) FROM locksidecar.waiters q WHERE q.namespace = $1 AND q.key = l.key AND q.id > l.queue_after AND q.outcome IS NULL) ELSE 0 END AS waiting,
    CASE WHEN l.share_limit IS NOT NULL THEN l.share_limit WHEN l.contended THEN locksidecar.waiting_limit($1, l.key, l.queue_after) END, NULL::integer AS slot,
    h.shown
FROM locksidecar.locks l
LEFT JOIN locksidecar.leases s ON s.id = l.lease_id
LEFT JOIN LATERAL (
    SELECT json_build_object(
        'count', max(x.count), 'next_end', min(x.lasts),
        'holders', json_agg(json_build_object(
            'slot', x.slot, 'lease', x.id, 'instance', x.instance, 'pod', x.pod, 'renewed', x.renewed, 'pending', NOT x.alive,
            'session', x.session, 'owner', x.owner, 'traceparent', x.traceparent,
            'acquired_at', (extract(epoch FROM x.acquired_at) * 1000000)::bigint,
            'held_for', (extract(epoch FROM clock_timestamp() - x.acquired_at) * 1000000)::bigint, 'expires_in', x.lasts,
            'stopping', (extract(epoch FROM x.stopping) * 1000000)::bigint, 'stop_reason', x.stop_reason
        ) ORDER BY x.n) FILTER (WHERE x.n <= $7::bigint))::text AS shown,
        bool_or($5 = '' OR x.instance = $5) AS chosen
    FROM (
        SELECT a.slot, a.session, a.owner, a.traceparent, a.acquired_at, a.stopping, a.stop_reason, o.id, o.renewed,
            coalesce(o.instance, a.hold_instance) AS instance, coalesce(o.pod, a.hold_pod) AS pod,
            row_number() OVER (ORDER BY a.acquired_at, a.slot) AS n, count(*) OVER () AS count,
            coalesce(o.expires_at > clock_timestamp(), false) AS alive,
            (extract(epoch FROM greatest(o.expires_at, a.hold_until) - clock_timestamp()) * 1000000)::bigint AS lasts
        FROM locksidecar.shares a LEFT JOIN locksidecar.leases o ON o.id = a.lease_id
        WHERE l.share_limit IS NOT NULL AND a.namespace = $1 AND a.key = l.key AND greatest(o.expires_at, a.hold_until) > clock_timestamp()
    ) x
    HAVING count(*) > 0
) h ON true
WHERE l.namespace = $1 AND l.key > $2 AND l.key >= $3 AND l.key < $4
AND CASE WHEN l.share_limit IS NULL THEN
    greatest(s.expires_at, l.hold_until) > clock_timestamp() AND coalesce(s.instance, l.hold_instance) IS NOT NULL
    AND ($5 = '' OR coalesce(s.instance, l.hold_instance) = $5)
ELSE h.chosen END
ORDER BY l.key
LIMIT $6

-- name: waiting
-- Lists living waiters in the order of their keys and queues. Positions are counted once from each of
-- these waiters to the next, and for the first one of a key from the head of the queue.
-- $1 namespace, $2 first key, $3 first key after the last one, $4 after this key, $5 and this waiter in its queue, $6 limit
WITH page AS MATERIALIZED (
    SELECT w.id, w.key, o.pod, w.session, w.owner, w.share_limit, w.enqueued_at, w.traceparent
    FROM locksidecar.waiters w CROSS JOIN LATERAL (
        SELECT * FROM locksidecar.leases s WHERE s.id = w.lease_id AND s.expires_at > clock_timestamp() OFFSET 0) o
    WHERE w.namespace = $1 AND w.key >= $2 AND w.key < $3 AND (w.key, w.id) > ($4, $5) AND w.outcome IS NULL
    ORDER BY w.key, w.id LIMIT $6
)
SELECT key, id, (sum(since) OVER (PARTITION BY key ORDER BY id))::bigint, pod, session, owner, share_limit,
    greatest(clock_timestamp() - enqueued_at, interval '0'), traceparent
FROM (
    SELECT p.*, (
        SELECT count(*) FROM locksidecar.waiters q
        WHERE q.namespace = $1 AND q.key = p.key AND q.id > p.before AND q.id <= p.id AND q.outcome IS NULL) AS since
    FROM (
        SELECT *, coalesce(lag(id) OVER (PARTITION BY key ORDER BY id), (
            SELECT queue_after FROM locksidecar.locks l WHERE l.namespace = $1 AND l.key = page.key), 0) AS before
        FROM page) p
) counted
ORDER BY key, id

-- name: locked
-- Returns the keys whose rows another session has locked now. It never waits, and its own locks end
-- at once.
-- $1 namespaces, $2 keys
WITH free AS MATERIALIZED (
    SELECT l.namespace, l.key FROM locksidecar.locks l, unnest($1::text[], $2::text[]) AS a (namespace, key)
    WHERE l.namespace = a.namespace AND l.key = a.key
    FOR UPDATE OF l SKIP LOCKED
)
SELECT l.namespace, l.key FROM locksidecar.locks l, unnest($1::text[], $2::text[]) AS a (namespace, key)
WHERE l.namespace = a.namespace AND l.key = a.key AND (l.namespace, l.key) NOT IN (SELECT namespace, key FROM free)
