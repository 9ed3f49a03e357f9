-- Takes the waiters of dead leases out of their queues. One that is locked is
-- being cancelled or handed over; whoever meets a dead waiter drops it.
-- $1 dead leases
DELETE FROM locksidecar.waiters
WHERE id IN (
    SELECT id FROM locksidecar.waiters WHERE lease_id = ANY ($1) ORDER BY id FOR UPDATE SKIP LOCKED)
