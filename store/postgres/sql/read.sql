-- Keys and who has them, now. OFFSET 0 keeps each lookup by itself: merged into one
-- join, it could become a scan of all that a namespace has. A server that was just promoted
-- judges no asker: by its clock all leases may look as if they were over.
-- Who finds a grant of its own hears of it when the standby has it.
-- $1 namespace, $2 keys, $3 the leases of who asks, and $4 the grants; null where nobody does
SELECT a.ord::integer,
    CASE WHEN a.lease_id IS NULL THEN false
        WHEN EXISTS (SELECT FROM locksidecar.leases own WHERE own.id = a.lease_id AND own.expires_at > clock_timestamp()
            AND NOT own.standing) THEN true
        ELSE NOT locksidecar.in_epoch() END AS asker_lives,
    l.lease_id AS rides_on, coalesce(l.contended, false), l.handed_by,
    l.token, l.acquired_at, s.expires_at, clock_timestamp(), s.id, s.instance, s.pod, s.renewed, s.standing,
    l.session, l.owner, l.data, l.traceparent, l.stopping, l.stop_reason, l.grant_id,
    CASE WHEN l.contended THEN (
        SELECT count(*)::integer FROM locksidecar.waiters q WHERE q.namespace = $1 AND q.key = a.key AND q.id > l.served AND q.outcome IS NULL) ELSE 0 END AS waiting
FROM unnest($2::text[], $3::uuid[], $4::uuid[]) WITH ORDINALITY AS a (key, lease_id, grant_id, ord)
LEFT JOIN LATERAL (SELECT * FROM locksidecar.locks WHERE namespace = $1 AND key = a.key OFFSET 0) l ON true
LEFT JOIN LATERAL (SELECT * FROM locksidecar.leases WHERE id = l.lease_id OFFSET 0) s ON true
WHERE CASE WHEN l.grant_id = a.grant_id THEN locksidecar.replicated() ELSE true END
