-- What a server's settings and tables must not be. reset_val is what sessions have
-- that set nothing.
SELECT clock_timestamp(), pg_is_in_recovery(),
    (SELECT setting FROM pg_settings WHERE name = 'fsync') AS fsync,
    (SELECT setting FROM pg_settings WHERE name = 'full_page_writes') AS full_page_writes,
    (SELECT reset_val FROM pg_settings WHERE name = 'synchronous_commit') AS synchronous_commit,
    (SELECT reset_val FROM pg_settings WHERE name = 'default_transaction_isolation') AS isolation,
    (SELECT reset_val FROM pg_settings WHERE name = 'default_transaction_read_only') AS read_only,
    ARRAY(SELECT relname::text FROM pg_class
        WHERE relnamespace = to_regnamespace('locksidecar') AND relkind IN ('r', 'p', 'S')
        AND relname IN ('leases', 'locks', 'waiters', 'signals', 'watchers', 'meta', 'tokens') AND relpersistence <> 'p'
        ORDER BY relname) AS not_logged
