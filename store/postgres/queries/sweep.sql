-- name: sweep_step
-- Makes one step of the sweep: see the function.
-- $1 how long leases have been expired, $2 how long keys have been free, $3 the shortest lap, $4 the time budget
SELECT due, begins, ends, pause, dead, dangling_namespaces, dangling_keys, dangling_leases,
    unwatched_namespaces, unwatched_keys
FROM locksidecar.sweep_step($1, $2, $3, $4)

-- name: sweep_left
-- Deletes the waiters, watchers and signals of dead leases, if a reap has skipped them. A lease that this
-- snapshot does not see is dead, because it is inserted before them. The sub-select looks each lease up by the
-- index, because there may be far more leases than these rows, and NOT EXISTS could read them all. Also returns
-- the shared keys of these waiters.
-- $1 limit of each
WITH waiters AS (
    DELETE FROM locksidecar.waiters
    WHERE id IN (
        SELECT w.id FROM locksidecar.waiters w
        WHERE (SELECT true FROM locksidecar.leases s WHERE s.id = w.lease_id) IS NULL
        ORDER BY w.id LIMIT $1 FOR UPDATE SKIP LOCKED)
    RETURNING namespace, key
), watchers AS (
    DELETE FROM locksidecar.watchers
    WHERE (namespace, key, lease_id) IN (
        SELECT w.namespace, w.key, w.lease_id FROM locksidecar.watchers w
        WHERE (SELECT true FROM locksidecar.leases s WHERE s.id = w.lease_id) IS NULL
        LIMIT $1 FOR UPDATE SKIP LOCKED)
    RETURNING true
), signals AS (
    DELETE FROM locksidecar.signals
    WHERE id IN (
        SELECT g.id FROM locksidecar.signals g
        WHERE (SELECT true FROM locksidecar.leases s WHERE s.id = g.lease_id) IS NULL
        ORDER BY g.id LIMIT $1 FOR UPDATE SKIP LOCKED)
    RETURNING true
), shared AS (
    SELECT w.namespace, w.key FROM (SELECT DISTINCT namespace, key FROM waiters) w
    JOIN locksidecar.locks l ON l.namespace = w.namespace AND l.key = w.key AND l.share_limit IS NOT NULL
)
SELECT greatest((SELECT count(*) FROM waiters), (SELECT count(*) FROM watchers), (SELECT count(*) FROM signals)),
    (SELECT array_agg(s.namespace ORDER BY s.namespace, s.key) FROM shared s),
    (SELECT array_agg(s.key ORDER BY s.namespace, s.key) FROM shared s)

-- name: next_token
-- Reads every lock. The last grant of a key has reserved the 255 tokens after its own. On a server that was just
-- promoted a history begins first. The second column is the rest of its quiet time, or null.
SELECT greatest(m.first_token, locksidecar.token_at(clock_timestamp()), (SELECT max(token) + 256 FROM locksidecar.locks)),
    CASE WHEN m.quiet_until > clock_timestamp() THEN m.quiet_until - clock_timestamp() END
FROM locksidecar.meta m WHERE locksidecar.in_history()

-- name: raise_tokens
-- Only the owner of the schema may write meta. $1 the least token from now on
UPDATE locksidecar.meta SET first_token = greatest(first_token, $1) RETURNING first_token, NULL::interval

-- name: stats
-- Counts what the whole database holds, by type and by pod, in one snapshot and by one reading of
-- the clock. It only reads. A lock whose lease is missing is in no line. A lock with a pending
-- min_hold counts as held. Returns the first lines of each list, and the rest as one more line.
-- $1 lines of a list at most, $2 the name of the last line
WITH moment AS MATERIALIZED (
    SELECT clock_timestamp() AS now
), counted AS (
    SELECT GROUPING(pod) = 0 AS by_pod, namespace, CASE GROUPING(pod) WHEN 0 THEN pod ELSE type END AS name,
        count(*) FILTER (WHERE alive) AS held, count(*) FILTER (WHERE alive AND shared) AS shared,
        count(*) FILTER (WHERE NOT alive) AS expired,
        count(*) FILTER (WHERE alive IS NULL) AS waiting,
        sum(held_for) FILTER (WHERE alive) AS held_for, max(held_for) FILTER (WHERE alive) AS longest
    FROM (
        SELECT l.namespace, CASE WHEN strpos(l.key, ':') > 0 THEN split_part(l.key, ':', 1) ELSE '' END AS type,
            coalesce(s.pod, l.hold_pod) AS pod, greatest(s.expires_at, l.hold_until) > now AS alive,
            greatest(now - l.acquired_at, interval '0') AS held_for, false AS shared
        FROM moment CROSS JOIN locksidecar.locks l LEFT JOIN locksidecar.leases s ON s.id = l.lease_id
        WHERE s.id IS NOT NULL OR l.hold_until > now AND l.hold_instance IS NOT NULL -- it is null in a quiet time (hold_quiet)
        UNION ALL
        SELECT h.namespace, CASE WHEN strpos(h.key, ':') > 0 THEN split_part(h.key, ':', 1) ELSE '' END,
            coalesce(s.pod, h.hold_pod), greatest(s.expires_at, h.hold_until) > now, greatest(now - h.acquired_at, interval '0'), true
        FROM moment CROSS JOIN locksidecar.shares h LEFT JOIN locksidecar.leases s ON s.id = h.lease_id
        WHERE s.id IS NOT NULL OR h.hold_until > now
        UNION ALL
        SELECT w.namespace, CASE WHEN strpos(w.key, ':') > 0 THEN split_part(w.key, ':', 1) ELSE '' END,
            NULL, NULL, NULL, NULL
        FROM locksidecar.waiters w WHERE w.outcome IS NULL
    ) a
    GROUP BY GROUPING SETS ((namespace, type), (namespace, pod))
), ordered AS (
    SELECT *, row_number() OVER (PARTITION BY by_pod ORDER BY held DESC, waiting + expired DESC, namespace, name) AS place
    FROM counted
    WHERE NOT by_pod OR name IS NOT NULL -- waiters have no pod
)
SELECT by_pod, CASE WHEN place <= $1::bigint THEN namespace ELSE '' END AS its_namespace,
    CASE WHEN place <= $1 THEN name ELSE $2 END AS its_name,
    sum(held)::bigint, sum(shared)::bigint, sum(expired)::bigint, sum(waiting)::bigint,
    coalesce(sum(held_for) / nullif(sum(held), 0), interval '0'), coalesce(max(longest), interval '0')
FROM ordered
GROUP BY by_pod, least(place, $1 + 1), its_namespace, its_name
ORDER BY by_pod, least(place, $1 + 1)

-- name: elect
-- Makes an instance the one that reads statistics for all, or returns how long another remains so: see the
-- function.
-- $1 instance, $2 term (0: ends its own)
SELECT elected, lasts FROM locksidecar.elect($1, $2)
