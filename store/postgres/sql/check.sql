-- What became of waiters, in one snapshot: a waiter's row and its grant are never
-- both seen, nor neither, because the hand-off swaps them in one transaction. A
-- waiter whose lease is dead has no place any more: nothing is given to it. One that
-- was skipped has its outcome, for as long as its lease lives. Places are not told:
-- counting them for everybody in a long line would be quadratic. A server that was just
-- promoted does not judge: by its clock a grant may look as if it were over, and new_epoch
-- would give its lease, and the lock, its TTL again, when the waiter has been told so. A
-- grant that is found is told when the standby has it.
-- $1 namespace, $2 keys, $3 grants
SELECT a.ord::integer, o.id IS NOT NULL AND w.outcome IS NULL AND NOT o.standing AS queued, o.instance AS keeper,
    o.id IS NOT NULL AND w.outcome IS NOT NULL AS skipped, w.result, l.lease_id AS rides_on, l.handed_by,
    l.token, l.acquired_at, s.expires_at, clock_timestamp(), s.id, s.instance, s.pod, s.renewed, s.standing,
    l.session, l.owner, l.data, l.traceparent, l.stopping, l.stop_reason, l.grant_id, NULL::integer AS waiting
FROM unnest($2::text[], $3::uuid[]) WITH ORDINALITY AS a (key, grant_id, ord)
LEFT JOIN LATERAL (SELECT * FROM locksidecar.waiters WHERE namespace = $1 AND grant_id = a.grant_id OFFSET 0) w ON true
LEFT JOIN LATERAL (SELECT * FROM locksidecar.leases WHERE id = w.lease_id OFFSET 0) o ON true
LEFT JOIN LATERAL (SELECT * FROM locksidecar.locks WHERE namespace = $1 AND key = a.key OFFSET 0) l ON true
LEFT JOIN LATERAL (SELECT * FROM locksidecar.leases WHERE id = l.lease_id OFFSET 0) s ON true
WHERE (SELECT locksidecar.in_epoch())
AND CASE WHEN l.grant_id = a.grant_id THEN locksidecar.replicated() ELSE true END
