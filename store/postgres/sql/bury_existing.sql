-- Which leases are there. One that is not is dead, for ever.
-- $1 leases
SELECT id FROM locksidecar.leases WHERE id = ANY ($1)
