-- Checks claims and changes data and remaining times: see the function.
-- $1 namespace, $2 keys, $3 tokens, $4 leases, $5 ttls (0: unchanged), $6 replace the data?, $7 datas
SELECT ord, state,
    token, acquired_at, expires_at, now, lease_id, instance, pod, renewed, session, owner, data, traceparent, waiting
FROM locksidecar.amend($1, $2, $3, $4, $5, $6, $7)
