-- release_one for many keys. The rows are locked first, in the order of the keys, for
-- an UPDATE has no order; then they are updated where they were found. Each key is
-- looked up by itself, so that the order is kept and no plan can scan the table. A
-- row that changed while this waited for it is left out: the function decides.
-- $1 namespace, $2 keys, $3 tokens, $4 leases
WITH locked AS MATERIALIZED (
    SELECT l.at, c.token, s.*
    FROM (
        SELECT * FROM unnest($2::text[], $3::bigint[], $4::uuid[]) AS c (key, token, lease_id)
        ORDER BY key COLLATE "C"
    ) c
    CROSS JOIN LATERAL (
        SELECT ctid AS at FROM locksidecar.locks WHERE namespace = $1 AND key = c.key FOR UPDATE OFFSET 0) l
    CROSS JOIN LATERAL (
        SELECT id, instance, pod, renewed, expires_at, hold_until FROM locksidecar.leases WHERE id = c.lease_id OFFSET 0) s
)
UPDATE locksidecar.locks l
SET lease_id = NULL, grant_id = NULL, freed_at = clock_timestamp()
FROM locked s
WHERE l.ctid = s.at AND l.token = s.token AND l.lease_id = s.id AND NOT l.contended AND l.stopping IS NULL
AND s.renewed AND s.expires_at > clock_timestamp() AND s.hold_until IS NULL
RETURNING l.key, l.watched,
    l.token, l.acquired_at, s.expires_at, clock_timestamp(), s.id, s.instance, s.pod, s.renewed, false,
    l.session, l.owner, l.data, l.traceparent, l.stopping, l.stop_reason, l.grant_id, 0
