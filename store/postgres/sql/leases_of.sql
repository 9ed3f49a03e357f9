-- The renewed leases of an instance.
-- $1 instance
SELECT id FROM locksidecar.leases WHERE instance = $1 AND renewed
