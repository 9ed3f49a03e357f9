-- Grants free and dead keys, or stands in line (invariants 1, 2, 5 and 7): see the
-- function. A sidecar that is too old for the schema fails here, before it is called.
-- $1 namespace, $2 not after, $3 may wait, $4 instance, $5 pod, $6 keys, $7 grants, $8 leases,
-- $9 ttls (0: a session's lock), $10 min_holds (0: none), $11 skips, $12 sessions, $13 owners, $14 datas,
-- $15 traceparents
SELECT ord, state, dead, place, result, watched, ended,
    token, acquired_at, expires_at, now, lease_id, instance, pod, renewed, standing,
    session, owner, data, traceparent, stopping, stop_reason, grant_id, waiting, handed_by
FROM locksidecar.ask($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)
WHERE (SELECT locksidecar.may_take(:schema_version))
