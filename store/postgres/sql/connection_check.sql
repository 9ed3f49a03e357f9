-- Who is at the other end of a connection. Through a pooler, the process is another
-- one than the connection was told.
SELECT pg_backend_pid(), current_setting('server_encoding'), current_setting('server_version_num')::integer,
    clock_timestamp()
