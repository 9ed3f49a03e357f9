-- What tells a primary from another one: by what servers are told from each other here
-- (meta.source), the mark, and how late its epoch is. One that was merely started again is
-- told from its former self only by when that was. No row: it is a standby.
SELECT rtrim(source || ' ' || locksidecar.here(source, '')), mark, began_token, epoch = locksidecar.here(source, mark),
    source = 'server' AND epoch <> locksidecar.here(source, mark) AND right(epoch, length(mark)) = mark, outdated
FROM locksidecar.meta
WHERE NOT pg_is_in_recovery()
