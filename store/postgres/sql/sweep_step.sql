-- Makes one step of the sweep: see the function.
-- $1 how long leases have been expired, $2 how long keys have been free, $3 the shortest lap,
-- $4 the time budget
SELECT due, begins, ends, pause, dead, dangling_namespaces, dangling_keys, dangling_leases,
    unwatched_namespaces, unwatched_keys
FROM locksidecar.sweep_step($1, $2, $3, $4)
