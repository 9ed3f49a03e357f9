-- Watches keys no longer: see the function.
-- $1 not after, $2 namespaces, $3 keys, $4 instance
SELECT locksidecar.unwatch($1, $2, $3, $4)
