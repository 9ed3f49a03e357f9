-- Held locks in the order of their keys. Both bounds are conditions on the index,
-- so the scan begins after the last page and ends with the prefix.
-- $1 namespace, $2 after, $3 prefix, $4 first key behind the prefix, $5 instance or empty, $6 limit
SELECT l.key,
    l.token, l.acquired_at, s.expires_at, clock_timestamp(), s.id, s.instance, s.pod, s.renewed, s.standing,
    l.session, l.owner, l.data, l.traceparent, l.stopping, l.stop_reason, l.grant_id,
    CASE WHEN l.contended THEN (
        SELECT count(*)::integer FROM locksidecar.waiters q WHERE q.namespace = $1 AND q.key = l.key AND q.id > l.served AND q.outcome IS NULL) ELSE 0 END AS waiting
FROM locksidecar.locks l
JOIN locksidecar.leases s ON s.id = l.lease_id AND s.expires_at > clock_timestamp()
WHERE l.namespace = $1 AND l.key > $2 AND l.key >= $3 AND l.key < $4
AND ($5 = '' OR s.instance = $5)
ORDER BY l.key
LIMIT $6
