-- Frees what attempts of unknown outcome hold or wait for (invariant 7): see the
-- function.
-- $1 namespace, $2 not after, $3 instance, $4 keys, $5 grants
SELECT namespace, key, outcome, expired, grant_id, lease_id, instance, token, acquired_at, expires_at,
    hints, hint_instances, watched, ended, now, lapsed
FROM locksidecar.undo($1, $2, $3, $4, $5)
