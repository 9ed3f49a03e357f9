-- Sets up a connection, in one round trip, so that a database's defaults can
-- neither weaken locks (isolation, read only, synchronous_commit) nor stall them.
-- Nearly all statements are point lookups. The planner is told to keep to them: a
-- plan that was made while a table was almost empty would scan it when it has grown.
-- Keep-alives end the transaction of a peer that vanished without a word.
-- $1 statement_timeout in ms, $2 lock_timeout in ms
SELECT set_config('default_transaction_isolation', 'read committed', false),
    set_config('default_transaction_read_only', 'off', false),
    set_config('synchronous_commit', CASE current_setting('synchronous_commit')
        WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, false),
    set_config('statement_timeout', $1::text, false),
    set_config('lock_timeout', $2::text, false),
    set_config('idle_in_transaction_session_timeout', $1::text, false),
    set_config('plan_cache_mode', 'force_generic_plan', false),
    set_config('enable_seqscan', 'off', false),
    set_config('enable_hashjoin', 'off', false),
    set_config('enable_mergejoin', 'off', false),
    set_config('enable_material', 'off', false),
    set_config('jit', 'off', false),
    set_config('client_min_messages', 'warning', false),
    set_config('tcp_keepalives_idle', '10', false),
    set_config('tcp_keepalives_interval', '5', false),
    set_config('tcp_keepalives_count', '3', false),
    current_setting('server_encoding'),
    current_setting('server_version_num')::integer
