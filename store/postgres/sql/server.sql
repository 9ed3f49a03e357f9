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
        ORDER BY relname) AS not_logged,
    ARRAY(SELECT c.relname::text FROM pg_sequence q JOIN pg_class c ON c.oid = q.seqrelid
        WHERE c.relnamespace = to_regnamespace('locksidecar') AND c.relname IN ('tokens', 'waiters_id_seq') AND q.seqcache > 1
        ORDER BY c.relname) AS cached,
    (SELECT source FROM locksidecar.meta), has_function_privilege('locksidecar.here(text, text)', 'EXECUTE') AS may_take
