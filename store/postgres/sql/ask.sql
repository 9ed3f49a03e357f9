-- Grants free and dead keys, or stands in line (invariants 1, 2, 5 and 7): see the
-- function.
-- $1 namespace, $2 not after, $3 may wait, $4 instance, $5 pod, $6 keys, $7 grants, $8 leases,
-- $9 ttls (0: a session's lock), $10 sessions, $11 owners, $12 datas, $13 traceparents
SELECT ord, state, dead, place,
    token, acquired_at, expires_at, now, lease_id, instance, pod, renewed, session, owner, data, traceparent, waiting
FROM locksidecar.ask($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)
