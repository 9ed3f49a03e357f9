-- Buries one lease, or lets it stand: see bury_many. It waits for a renewal, an enqueue
-- or a hand-off that is under way, and decides afterwards, by the row as it then is.
-- $1 lease, $2 true: also when it has not expired
WITH due AS MATERIALIZED (
    SELECT id, standing, hold_until, coalesce(hold_until > clock_timestamp(), false) AS holds, namespace, key
    FROM locksidecar.leases
    WHERE id = $1 AND ($2 OR expires_at <= clock_timestamp() AND locksidecar.in_epoch())
    FOR UPDATE
), kept AS (
    UPDATE locksidecar.leases l SET standing = true, expires_at = due.hold_until
    FROM due WHERE l.id = due.id AND due.holds AND NOT due.standing
), dead AS (
    DELETE FROM locksidecar.leases l USING due WHERE l.id = due.id AND NOT due.holds
)
SELECT id, holds, holds AND NOT standing, namespace, key FROM due
