-- Frees or hands off locks (invariant 5): see the function.
-- $1 namespace, $2 instance, $3 keys, $4 tokens, $5 leases, $6 untold
SELECT ord, state,
    token, acquired_at, expires_at, now, lease_id, instance, pod, renewed, session, owner, data, traceparent, waiting,
    outcome, expired, next_grant, next_lease, next_instance, next_token, next_acquired_at, next_expires_at,
    then_grant, then_instance
FROM locksidecar.release($1, $2, $3, $4, $5, $6)
