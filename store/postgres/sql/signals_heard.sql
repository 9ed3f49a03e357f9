-- Forgets signals that were heard. One that is locked is being replaced or dropped.
-- $1 signals
DELETE FROM locksidecar.signals
WHERE id IN (SELECT id FROM locksidecar.signals WHERE id = ANY ($1) ORDER BY id FOR UPDATE SKIP LOCKED)
