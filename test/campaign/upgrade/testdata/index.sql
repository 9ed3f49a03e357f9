-- An index on a table that is in use is made beside its users, which takes its time and
-- must not give up: the migration that makes it does nothing else, and may be run again.

-- +goose NO TRANSACTION
-- +goose Up
SET lock_timeout = 0;
DROP INDEX CONCURRENTLY IF EXISTS locksidecar.waiters_future;
CREATE INDEX CONCURRENTLY waiters_future ON locksidecar.waiters (enqueued_at);
