-- Buries one lease. It waits for a renewal, an enqueue or a hand-off that is under
-- way, and decides afterwards, by the row as it then is.
-- $1 lease, $2 true: also when it has not expired
DELETE FROM locksidecar.leases WHERE id = $1 AND ($2 OR expires_at <= clock_timestamp() AND locksidecar.in_epoch())
RETURNING id
