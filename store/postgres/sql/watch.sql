-- Watches keys: see the function.
-- $1 namespace, $2 not after, $3 keys, $4 lease, $5 instance
SELECT locksidecar.watch($1, $2, $3, $4, $5)
