-- Acquires one key for a session if it is free: the insert decides, and only while
-- the asker's own lease lives. No row: somebody has the key, or had it when the
-- statement began, or the lease does not live; that is read afterwards.
-- Invariant 2: on the conflict path the token is drawn by the SET, after the row
-- is locked; the first one was drawn before the wait and is not used there.
-- The last condition looks first, because a conflict that is refused locks the row
-- all the same and makes the server flush its log for a denial.
-- It grants only in the epoch of this server (see the function in_epoch), to a sidecar that
-- is not too old for the schema, and only in time (invariant 7).
-- $1 namespace, $2 key, $3 lease, $4 grant, $5 session, $6 owner, $7 data, $8 traceparent, $9 not after
INSERT INTO locksidecar.locks AS l
    (namespace, key, lease_id, token, grant_id, session, owner, acquired_at, data, traceparent)
SELECT $1, $2, own.id, nextval('locksidecar.tokens'), $4, $5, $6, clock_timestamp(), $7, $8
FROM locksidecar.leases own
WHERE own.id = $3 AND own.expires_at > clock_timestamp() AND NOT own.standing
AND (SELECT lease_id FROM locksidecar.locks WHERE namespace = $1 AND key = $2) IS NULL
AND clock_timestamp() < $9
AND (SELECT epoch = locksidecar.here(source, mark) FROM locksidecar.meta WHERE oldest_version <= :schema_version)
ON CONFLICT (namespace, key) DO UPDATE
SET lease_id = excluded.lease_id, token = nextval('locksidecar.tokens'), grant_id = excluded.grant_id,
    stopping = NULL, stop_reason = NULL, session = excluded.session, owner = excluded.owner,
    acquired_at = clock_timestamp(), data = excluded.data, traceparent = excluded.traceparent, handed_by = '',
    freed_at = NULL
WHERE l.lease_id IS NULL AND clock_timestamp() < $9
RETURNING token, acquired_at, (SELECT expires_at FROM locksidecar.leases WHERE id = $3), clock_timestamp(), watched
