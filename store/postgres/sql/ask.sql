-- Grants free and dead keys, or stands in line (invariants 1, 2 and 5): see the
-- function.
-- $1 namespace, $2 may wait, $3 instance, $4 pod, $5 keys, $6 grants, $7 leases, $8 ttls (0: a session's lock),
-- $9 sessions, $10 owners, $11 datas, $12 traceparents
SELECT ord, state, dead, place,
    token, acquired_at, expires_at, now, lease_id, instance, pod, renewed, session, owner, data, traceparent, waiting
FROM locksidecar.ask($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
