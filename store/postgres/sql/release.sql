-- Frees, hands off or keeps locks, and marks waiters that are skipped (invariant 5):
-- see the function.
-- $1 namespace, $2 instance, $3 keys, $4 tokens, $5 leases, $6 untold, $7 success?, $8 results, $9 ignore holds?,
-- $10 trace contexts
SELECT ord, state, token, lease_id, acquired_at, traceparent, now,
    outcome, expired, next_grant, next_lease, next_instance, next_token, next_acquired_at, next_expires_at,
    hints, hint_instances, watched
FROM locksidecar.release($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
