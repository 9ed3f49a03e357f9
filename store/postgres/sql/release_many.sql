-- release_one for many keys. The rows are locked first, in the order of the keys, for
-- an UPDATE has no order; then they are updated where they were found. Each key is
-- looked up by itself, so that the order is kept and no plan can scan the table. A
-- row that changed while this waited for it is left out: the function decides. Leases are
-- few, so they are read once; whether one lives is judged when the row's lock is had.
-- $1 namespace, $2 keys, $3 tokens, $4 leases
WITH own AS MATERIALIZED (
    SELECT id, expires_at FROM locksidecar.leases
    WHERE id = ANY ($4::uuid[]) AND renewed AND hold_until IS NULL
), locked AS MATERIALIZED (
    SELECT l.at, c.token, c.lease_id, clock_timestamp() AS had
    FROM (
        SELECT * FROM unnest($2::text[], $3::bigint[], $4::uuid[]) AS c (key, token, lease_id)
        ORDER BY key COLLATE "C"
    ) c
    CROSS JOIN LATERAL (
        SELECT ctid AS at FROM locksidecar.locks WHERE namespace = $1 AND key = c.key FOR UPDATE OFFSET 0) l
)
UPDATE locksidecar.locks l
SET lease_id = NULL, grant_id = NULL, freed_at = clock_timestamp()
FROM locked s, own o
WHERE l.ctid = s.at AND l.token = s.token AND l.lease_id = s.lease_id AND NOT l.contended AND l.stopping IS NULL
AND o.id = s.lease_id AND o.expires_at > s.had
RETURNING l.key, l.watched
