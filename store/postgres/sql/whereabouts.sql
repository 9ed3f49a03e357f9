-- Where a connection leads: when the server was started, which no two servers share, and no
-- two runs of one; the database; and the process, which through a pooler is another one than
-- the connection was told. It takes no right but to connect.
SELECT (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint, current_database()::text, pg_backend_pid()
