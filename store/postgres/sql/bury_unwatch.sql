-- Forgets what was watched under dead leases. A row that is locked is being dropped by
-- somebody else, or the sweep comes after all.
-- $1 dead leases
DELETE FROM locksidecar.watchers
WHERE (namespace, key, lease_id) IN (
    SELECT namespace, key, lease_id FROM locksidecar.watchers WHERE lease_id = ANY ($1)
    FOR UPDATE SKIP LOCKED)
