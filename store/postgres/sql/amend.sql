-- Checks claims and changes data and remaining times: see the function.
-- $1 namespace, $2 not after, $3 keys, $4 tokens, $5 leases, $6 ttls (0: unchanged), $7 replace the data?, $8 datas
SELECT ord, state,
    token, acquired_at, expires_at, now, lease_id, instance, pod, renewed, standing,
    session, owner, data, traceparent, stopping, stop_reason, grant_id, waiting,
    hints, hint_instances
FROM locksidecar.amend($1, $2, $3, $4, $5, $6, $7, $8)
