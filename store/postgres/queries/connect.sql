-- name: connection_check
-- Describes the server of a connection, before the session is set up: so the time is a number. Through a pooler, the
-- process differs from the one that the connection named first.
SELECT pg_catalog.pg_backend_pid(), pg_catalog.current_setting('server_encoding'),
    pg_catalog.current_setting('server_version_num')::integer,
    (extract(epoch FROM pg_catalog.clock_timestamp()) * 1000000::numeric)::bigint

-- name: connection_set_up
-- Sets up a session, so that the defaults of a role, a database or a server can neither weaken locks (isolation,
-- read only, synchronous_commit), nor stall them or end the session, nor change what statements mean. With
-- search_path, nobody else's function or operator replaces one of PostgreSQL's. Behind a pooler, sessions are
-- shared, so each transaction does it.
--
-- Nearly all statements are point lookups, and the planner must keep to them, because a plan from the time of
-- an almost empty table would scan the table later. Keep-alives end the transaction of a vanished peer.
-- $1 statement_timeout in ms, $2 lock_timeout in ms, $3 idle_in_transaction_session_timeout in ms, $4 true: for this
-- transaction only
SELECT pg_catalog.set_config('default_transaction_isolation', 'read committed', $4),
    pg_catalog.set_config('default_transaction_read_only', 'off', $4),
    pg_catalog.set_config('synchronous_commit', CASE pg_catalog.current_setting('synchronous_commit')
        WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, $4),
    pg_catalog.set_config('statement_timeout', $1::text, $4),
    pg_catalog.set_config('lock_timeout', $2::text, $4),
    pg_catalog.set_config('idle_in_transaction_session_timeout', $3::text, $4),
    pg_catalog.set_config('idle_session_timeout', '0', $4),
    CASE WHEN pg_catalog.current_setting('transaction_timeout', true) IS NOT NULL -- since PostgreSQL 17
        THEN pg_catalog.set_config('transaction_timeout', '0', $4) END,
    pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', $4),
    pg_catalog.set_config('standard_conforming_strings', 'on', $4),
    pg_catalog.set_config('DateStyle', 'ISO, MDY', $4),
    pg_catalog.set_config('IntervalStyle', 'postgres', $4),
    pg_catalog.set_config('TimeZone', 'UTC', $4),
    pg_catalog.set_config('plan_cache_mode', 'force_generic_plan', $4),
    pg_catalog.set_config('enable_seqscan', 'off', $4),
    pg_catalog.set_config('enable_hashjoin', 'off', $4),
    pg_catalog.set_config('enable_mergejoin', 'off', $4),
    pg_catalog.set_config('enable_material', 'off', $4),
    pg_catalog.set_config('jit', 'off', $4),
    pg_catalog.set_config('client_min_messages', 'warning', $4),
    pg_catalog.set_config('tcp_keepalives_idle', '10', $4),
    pg_catalog.set_config('tcp_keepalives_interval', '5', $4),
    pg_catalog.set_config('tcp_keepalives_count', '3', $4)

-- name: whereabouts
-- Identifies the server and database of a connection: by the start time of the server, which differs between
-- servers and between runs of one; the database; and the process. It needs only the right to connect.
SELECT (extract(epoch FROM pg_catalog.pg_postmaster_start_time()) * 1000000::numeric)::bigint,
    pg_catalog.current_database()::text, pg_catalog.pg_backend_pid()

-- name: server
-- Reads settings and tables of the server that could weaken locks. reset_val is the value for
-- sessions that set nothing. The view is made anew each time that it is named, so it is named once.
SELECT clock_timestamp(), pg_is_in_recovery(), current_setting('fsync'), current_setting('full_page_writes'),
    synchronous_commit, isolation, read_only,
    ARRAY(SELECT relname::text FROM pg_class
        WHERE relnamespace = to_regnamespace('locksidecar') AND relkind IN ('r', 'p', 'S')
        AND relname IN ('leases', 'locks', 'waiters', 'signals', 'watchers', 'shares', 'meta', 'quiet_ttls') AND relpersistence <> 'p'
        ORDER BY relname) AS not_logged,
    ARRAY(SELECT c.relname::text FROM pg_sequence q JOIN pg_class c ON c.oid = q.seqrelid
        WHERE c.relnamespace = to_regnamespace('locksidecar') AND c.relname = 'waiters_id_seq' AND q.seqcache > 1
        ORDER BY c.relname) AS cached,
    (SELECT source FROM locksidecar.meta), has_function_privilege('locksidecar.here(text, text)', 'EXECUTE') AS may_take
FROM (SELECT max(reset_val) FILTER (WHERE name = 'synchronous_commit') AS synchronous_commit,
        max(reset_val) FILTER (WHERE name = 'default_transaction_isolation') AS isolation,
        max(reset_val) FILTER (WHERE name = 'default_transaction_read_only') AS read_only
    FROM pg_settings) AS defaults

-- name: schema_exists
-- Tells whether there is a schema.
SELECT to_regclass('locksidecar.meta') IS NOT NULL

-- name: schema_version
-- Reads the schema's version, and the oldest one that a sidecar may be built for.
SELECT schema_version, oldest_version FROM locksidecar.meta

-- name: new_history
-- Begins to grant on a server that was promoted or restored: see the function.
SELECT locksidecar.new_history()

-- name: primary
-- Identifies a primary: its name by meta.source, its mark, and how recent its history is. The name of a server
-- that was merely restarted differs only by the start time. The last column is the rest of the quiet time in
-- ms, or null. No row: a standby.
SELECT rtrim(source || ' ' || locksidecar.here(source, '')), mark, began_token, server = locksidecar.here(source, mark),
    source = 'server' AND server <> locksidecar.here(source, mark) AND right(server, length(mark)) = mark, outdated,
    CASE WHEN quiet_until > clock_timestamp() THEN (extract(epoch FROM quiet_until - clock_timestamp()) * 1000)::bigint END
FROM locksidecar.meta
WHERE NOT pg_is_in_recovery()

-- name: system
-- Tells which cluster a primary belongs to. Its copies share the identifier. No row: a standby.
SELECT system_identifier::text FROM pg_control_system() WHERE NOT pg_is_in_recovery()

-- name: outdate
-- Records on an old primary that a later one exists, so that it grants nothing, even to sidecars that do not
-- know the later one: see the function. A standby may no longer confirm this; the next connection repeats it.
-- $1 the token with which its history began, $2 that of the later one
SELECT set_config('synchronous_commit', 'local', true), locksidecar.outdate($1, $2)
