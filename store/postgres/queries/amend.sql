-- name: amend
-- Checks claims, and changes data and remaining times: see the function.
-- $1 namespace, $2 not after, $3 instance, $4 keys, $5 tokens, $6 leases, $7 ttls (0: unchanged), $8 replace the data?,
-- $9 datas
SELECT ord, state, hints, hint_instances, NULL::bigint, (shown).*
FROM locksidecar.amend($1, $2, $3, $4, $5, $6, $7, $8, $9)

-- name: downgrade
-- amend, and makes exclusive locks shares: see the function.
-- $1 to $9 as amend
SELECT ord, state, hints, hint_instances, NULL::bigint, (shown).*
FROM locksidecar.downgrade($1, $2, $3, $4, $5, $6, $7, $8, $9)

-- name: adopt
-- amend, and makes the last served waiters the holders: see the function.
-- $1 to $9 as amend, $10 served waiters, and of the last of them: $11 sessions, $12 owners, $13 times of the grant, $14 trace contexts
SELECT ord, state, hints, hint_instances, ended, (shown).*
FROM locksidecar.adopt($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)
