-- Sets up a session so that a database's defaults can neither weaken locks (isolation,
-- read only, synchronous_commit) nor stall them. Behind a pooler, where a session is
-- shared, it is done for each transaction instead.
-- Nearly all statements are point lookups. The planner is told to keep to them: a
-- plan that was made while a table was almost empty would scan it when it has grown.
-- Keep-alives end the transaction of a peer that vanished without a word.
-- $1 statement_timeout in ms, $2 lock_timeout in ms, $3 true: for this transaction only
SELECT set_config('default_transaction_isolation', 'read committed', $3),
    set_config('default_transaction_read_only', 'off', $3),
    set_config('synchronous_commit', CASE current_setting('synchronous_commit')
        WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, $3),
    set_config('statement_timeout', $1::text, $3),
    set_config('lock_timeout', $2::text, $3),
    set_config('idle_in_transaction_session_timeout', $1::text, $3),
    set_config('plan_cache_mode', 'force_generic_plan', $3),
    set_config('enable_seqscan', 'off', $3),
    set_config('enable_hashjoin', 'off', $3),
    set_config('enable_mergejoin', 'off', $3),
    set_config('enable_material', 'off', $3),
    set_config('jit', 'off', $3),
    set_config('client_min_messages', 'warning', $3),
    set_config('tcp_keepalives_idle', '10', $3),
    set_config('tcp_keepalives_interval', '5', $3),
    set_config('tcp_keepalives_count', '3', $3)
