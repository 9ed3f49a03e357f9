-- Forgets keys that have been free for long. A key's token could go back if its row
-- went while a statement that had drawn a token was under way; that takes seconds
-- at most, so "long" is a day (invariant 2).
-- $1 advisory lock, $2 free for so long, $3 limit
DELETE FROM locksidecar.locks
WHERE (namespace, key) IN (
    SELECT namespace, key FROM locksidecar.locks
    WHERE (SELECT pg_try_advisory_xact_lock($1))
    AND lease_id IS NULL AND NOT contended AND NOT watched AND freed_at < clock_timestamp() - $2::interval
    ORDER BY namespace, key LIMIT $3 FOR UPDATE SKIP LOCKED)
RETURNING true
