-- Tells other instances that there is something to look at. A transaction with NOTIFY
-- holds a lock of the whole server while it commits, so it has nothing to write, and
-- does not wait for the disk: it is only a hint.
-- $1 channels, $2 payloads
SELECT pg_notify(channel, payload)
FROM unnest($1::text[], $2::text[]) AS n (channel, payload)
WHERE set_config('synchronous_commit', 'off', true) IS NOT NULL
