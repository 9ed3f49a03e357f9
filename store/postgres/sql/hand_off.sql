-- Gives keys to their first living waiters, or frees them (invariant 5): see the
-- function.
-- $1 namespaces, $2 keys, $3 leases that hold them, $4 tokens or nulls,
-- $5 trace contexts of releases, or empty
SELECT namespace, key, outcome, expired, grant_id, lease_id, instance, token, acquired_at, expires_at,
    hints, hint_instances, watched, ended, now
FROM locksidecar.hand_off_keys($1, $2, $3, $4, $5)
