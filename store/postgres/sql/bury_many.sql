-- Buries leases without waiting for any: one that somebody has locked is skipped,
-- for who deletes leases must not wait for one while it has another. One whose hold is
-- not over stands from now on until it is. Tells of each whether it stands, whether it
-- does since now, and the only key that it may have held. What "due" tells is the row as
-- it was locked; the table itself is seen here as it was when the statement began.
-- $1 leases, $2 true: also those that have not expired
WITH due AS MATERIALIZED (
    SELECT id, standing, hold_until, coalesce(hold_until > clock_timestamp(), false) AS holds, namespace, key
    FROM locksidecar.leases
    WHERE id = ANY ($1) AND ($2 OR expires_at <= clock_timestamp() AND locksidecar.in_epoch())
    ORDER BY id FOR UPDATE SKIP LOCKED
), kept AS (
    UPDATE locksidecar.leases l SET standing = true, expires_at = due.hold_until
    FROM due WHERE l.id = due.id AND due.holds AND NOT due.standing
), dead AS (
    DELETE FROM locksidecar.leases l USING due WHERE l.id = due.id AND NOT due.holds
)
SELECT id, holds, holds AND NOT standing, namespace, key FROM due
