-- Forgets what dead leases were asked for, and what was watched under them. One that is
-- locked is being dropped by somebody else, and the sweep comes after all.
-- $1 dead leases
WITH unwatched AS (
    DELETE FROM locksidecar.watchers
    WHERE (namespace, key, lease_id) IN (
        SELECT namespace, key, lease_id FROM locksidecar.watchers WHERE lease_id = ANY ($1)
        FOR UPDATE SKIP LOCKED)
)
DELETE FROM locksidecar.signals
WHERE id IN (SELECT id FROM locksidecar.signals WHERE lease_id = ANY ($1) FOR UPDATE SKIP LOCKED)
