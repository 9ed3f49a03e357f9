-- name: acquire_one
-- The first of five statements that take keys that are free:
--
--   acquire_one      one key
--   acquire_row      one key that was released here a short time ago, so it has a row (see recentKeys)
--   acquire_session  several keys for sessions under one lease
--   acquire_rows     the same, if each key was released here a short time ago
--   acquire_many     several keys under several leases, or for bind:ttl locks, each of which has a lease of its own
--
-- The function ask in code/acquire.sql decides all other asks. The promises with numbers are those of store/doc.go.
--
-- Acquires one key for a session if it is free: the insert decides, and only while the asker's own lease lives.
-- No row: the key is held, or was when the statement began, or the lease is not alive. The caller then reads
-- the reason.
--
-- Promise 3: the token is the clock, at least first_token, and on the conflict path greater than the token of
-- the locked row. The clock is read before the statement may wait. If it inserts after a wait, no grant came in
-- between, because the row of such a grant would stay for an hour, and the statement ends within its timeout.
--
-- The sub-select reads the lock row first, because a refused conflict would lock the row and flush the server's
-- log. The last conditions: only in time (promise 9), only in this server's history (see in_history), only if the
-- sidecar is not too old for the schema, and not in a quiet time (see new_history).
--
-- The grant is keepable if the row still has the token that the asker names, so nobody had the key since its release there,
-- and if nobody waits or watches. As everything in SET, this is judged by the locked row.
-- $1 namespace, $2 key, $3 lease, $4 grant, $5 session, $6 owner, $7 data, $8 traceparent, $9 not after, $10 the last token, or 0
INSERT INTO locksidecar.locks AS l
    (namespace, key, lease_id, token, attempt_id, session, owner, acquired_at, data, traceparent)
SELECT $1, $2, own.id, greatest(locksidecar.token_at(clock_timestamp()), m.first_token), $4, $5, $6, clock_timestamp(), $7, $8
FROM locksidecar.leases own CROSS JOIN locksidecar.meta m
WHERE own.id = $3 AND own.expires_at > clock_timestamp()
AND (SELECT lease_id FROM locksidecar.locks WHERE namespace = $1 AND key = $2) IS NULL
AND clock_timestamp() < $9
AND m.server = locksidecar.here(m.source, m.mark) AND m.oldest_version <= :schema_version
AND m.quiet_until <= clock_timestamp()
ON CONFLICT (namespace, key) DO UPDATE
SET lease_id = excluded.lease_id, token = greatest(excluded.token, l.token + 256), attempt_id = excluded.attempt_id,
    stopping = NULL, stop_reason = NULL, session = excluded.session, owner = excluded.owner,
    acquired_at = clock_timestamp(), data = excluded.data, traceparent = excluded.traceparent, handed_by = '',
    freed_at = NULL, keepable = l.attempt_id IS NULL AND NOT l.contended AND NOT l.watched AND l.token = $10
WHERE l.lease_id IS NULL AND clock_timestamp() < $9
RETURNING token, acquired_at, (SELECT expires_at FROM locksidecar.leases WHERE id = $3), watched, keepable

-- name: acquire_row
-- acquire_one for a key that had a row a moment ago, as after a release. An UPDATE costs the server less than an
-- insertion that finds a conflict. No row: also if the sweep has deleted the key's row. The caller then reads
-- the reason, and the function takes the key.
--
-- If the row was changed while this waited for it, PostgreSQL judges it again and computes the grant anew. If
-- it was only locked, the grant is that of the time before the wait. So the time is checked at the end: a
-- withdrawal locks the row, too, and must not be followed by the grant (promise 9).
-- Parameters: see acquire_one.
UPDATE locksidecar.locks l
SET lease_id = own.id, token = greatest(locksidecar.token_at(clock_timestamp()), m.first_token, l.token + 256), attempt_id = $4,
    stopping = NULL, stop_reason = NULL, session = $5, owner = $6,
    acquired_at = clock_timestamp(), data = $7, traceparent = $8, handed_by = '', freed_at = NULL,
    keepable = l.attempt_id IS NULL AND NOT l.contended AND NOT l.watched AND l.token = $10
FROM locksidecar.leases own CROSS JOIN locksidecar.meta m
WHERE l.namespace = $1 AND l.key = $2 AND l.lease_id IS NULL
AND own.id = $3 AND own.expires_at > clock_timestamp()
AND m.server = locksidecar.here(m.source, m.mark) AND m.oldest_version <= :schema_version
AND m.quiet_until <= clock_timestamp()
RETURNING token, acquired_at, own.expires_at, CASE WHEN clock_timestamp() < $9 THEN watched ELSE locksidecar.in_time($9) END, keepable

-- name: acquire_session
-- acquire_one for many keys under one lease, in the order of the keys. Returns the granted keys. Owners, datas
-- and trace contexts are null if nobody has any. A pair costs the server a tenth less than with
-- acquire_many: see bench/LIMITS.md.
-- $1 namespace, $2 lease, $3 keys, $4 attempts, $5 sessions, $6 owners, $7 datas, $8 traceparents, $9 not after,
-- $10 last tokens, or null
WITH own AS MATERIALIZED (
    SELECT s.id, s.expires_at, m.first_token FROM locksidecar.leases s CROSS JOIN locksidecar.meta m
    WHERE s.id = $2 AND s.expires_at > clock_timestamp() AND clock_timestamp() < $9
    AND m.server = locksidecar.here(m.source, m.mark) AND m.oldest_version <= :schema_version
    AND m.quiet_until <= clock_timestamp()
)
INSERT INTO locksidecar.locks AS l
    (namespace, key, lease_id, token, attempt_id, session, owner, acquired_at, data, traceparent)
SELECT $1, a.key, own.id, greatest(locksidecar.token_at(clock_timestamp()), own.first_token),
    a.attempt_id, a.session, coalesce(a.owner, ''), clock_timestamp(), a.data, coalesce(a.traceparent, '')
FROM own CROSS JOIN unnest($3::text[], $4::uuid[], $5::text[], $6::text[], $7::text[], $8::text[])
    AS a (key, attempt_id, session, owner, data, traceparent)
WHERE (SELECT found.lease_id FROM locksidecar.locks found WHERE found.namespace = $1 AND found.key = a.key) IS NULL
ORDER BY a.key COLLATE "C"
ON CONFLICT (namespace, key) DO UPDATE
SET lease_id = excluded.lease_id, token = greatest(excluded.token, l.token + 256), attempt_id = excluded.attempt_id,
    stopping = NULL, stop_reason = NULL, session = excluded.session, owner = excluded.owner,
    acquired_at = clock_timestamp(), data = excluded.data, traceparent = excluded.traceparent, handed_by = '',
    freed_at = NULL, keepable = coalesce($10::bigint[] IS NOT NULL AND l.attempt_id IS NULL AND NOT l.contended AND NOT l.watched
        AND l.token = ($10::bigint[])[array_position($3::text[], l.key)], false)
WHERE l.lease_id IS NULL AND clock_timestamp() < $9
RETURNING l.key, l.token, l.acquired_at, (SELECT expires_at FROM own), l.watched, l.keepable

-- name: acquire_rows
-- acquire_row for many keys under one lease. It changes the rows in the order of the keys: each key is looked up
-- by itself, which keeps the order and allows no scan. The row is judged again by itself, because not every
-- PostgreSQL compares the ctid again after a wait. Returns the granted keys.
-- Parameters: see acquire_session.
WITH own AS MATERIALIZED (
    SELECT s.id, s.expires_at, m.first_token FROM locksidecar.leases s CROSS JOIN locksidecar.meta m
    WHERE s.id = $2 AND s.expires_at > clock_timestamp()
    AND m.server = locksidecar.here(m.source, m.mark) AND m.oldest_version <= :schema_version
    AND m.quiet_until <= clock_timestamp()
)
UPDATE locksidecar.locks l
SET lease_id = a.lease_id, token = greatest(locksidecar.token_at(clock_timestamp()), a.first_token, l.token + 256),
    attempt_id = a.attempt_id, stopping = NULL, stop_reason = NULL, session = a.session, owner = coalesce(a.owner, ''),
    acquired_at = clock_timestamp(), data = a.data, traceparent = coalesce(a.traceparent, ''), handed_by = '', freed_at = NULL,
    keepable = coalesce(l.attempt_id IS NULL AND NOT l.contended AND NOT l.watched AND l.token = a.last, false)
FROM (
    SELECT k.*, own.id AS lease_id, own.expires_at, own.first_token, found.at
    FROM own CROSS JOIN (
        SELECT * FROM unnest($3::text[], $4::uuid[], $5::text[], $6::text[], $7::text[], $8::text[], $10::bigint[])
            AS k (key, attempt_id, session, owner, data, traceparent, last)
        ORDER BY k.key COLLATE "C" OFFSET 0
    ) k
    CROSS JOIN LATERAL (
        SELECT ctid AS at FROM locksidecar.locks WHERE namespace = $1 AND key = k.key AND lease_id IS NULL OFFSET 0) found
) a
WHERE l.ctid = a.at AND l.lease_id IS NULL
RETURNING l.key, l.token, l.acquired_at, a.expires_at, CASE WHEN clock_timestamp() < $9 THEN l.watched ELSE locksidecar.in_time($9) END,
    l.keepable

-- name: acquire_many
-- acquire_one for many keys under several leases, in the order of the keys, and for bind:ttl locks, whose
-- leases are made with the grants. Returns the granted keys. Keys and locks are not joined, because the
-- planner does not know the numbers of rows, and could compare each with each. Own leases are few,
-- one for each TTL, so they are read once, and so are the history and its first_token.
-- $1 namespace, $2 keys, $3 leases, $4 true for a bind:ttl lock, $5 attempts, $6 sessions, $7 owners, $8 datas,
-- $9 traceparents, $10 leases to be made, $11 their ttls, $12 instance, $13 pod, $14 not after, $15 last tokens, or null
WITH own AS MATERIALIZED (
    SELECT id, expires_at FROM locksidecar.leases
    WHERE id = ANY ($3::uuid[]) AND expires_at > clock_timestamp()
), this_history AS MATERIALIZED (
    SELECT first_token FROM locksidecar.meta
    WHERE clock_timestamp() < $14 AND server = locksidecar.here(source, mark) AND oldest_version <= :schema_version
    AND quiet_until <= clock_timestamp()
), taken AS (
    INSERT INTO locksidecar.locks AS l
        (namespace, key, lease_id, token, attempt_id, session, owner, acquired_at, data, traceparent)
    SELECT $1, key, lease_id, greatest(locksidecar.token_at(clock_timestamp()), (SELECT first_token FROM this_history)),
        attempt_id, session, owner, clock_timestamp(), data, traceparent
    FROM unnest($2::text[], $3::uuid[], $4::boolean[], $5::uuid[], $6::text[], $7::text[], $8::text[], $9::text[])
        AS a (key, lease_id, by_ttl, attempt_id, session, owner, data, traceparent)
    WHERE (by_ttl OR lease_id IN (SELECT id FROM own))
    AND (SELECT found.lease_id FROM locksidecar.locks found
        WHERE found.namespace = $1 AND found.key = a.key) IS NULL
    AND (SELECT first_token FROM this_history) IS NOT NULL
    ORDER BY key COLLATE "C"
    ON CONFLICT (namespace, key) DO UPDATE
    SET lease_id = excluded.lease_id, token = greatest(excluded.token, l.token + 256), attempt_id = excluded.attempt_id,
        stopping = NULL, stop_reason = NULL, session = excluded.session, owner = excluded.owner,
        acquired_at = clock_timestamp(), data = excluded.data, traceparent = excluded.traceparent, handed_by = '',
        freed_at = NULL,
        keepable = coalesce($15::bigint[] IS NOT NULL AND l.attempt_id IS NULL AND NOT l.contended AND NOT l.watched
            AND l.token = ($15::bigint[])[array_position($2::text[], l.key)], false)
    WHERE l.lease_id IS NULL AND clock_timestamp() < $14
    RETURNING l.key, l.lease_id, l.token, l.acquired_at, l.watched, l.keepable
), made AS (
    INSERT INTO locksidecar.leases (id, instance, pod, renewed, ttl, expires_at, namespace, key)
    SELECT t.lease_id, $12, $13, false, ($11::interval[])[n], t.acquired_at + ($11::interval[])[n], $1, t.key
    FROM taken t, array_position($10::uuid[], t.lease_id) n
    WHERE cardinality($10::uuid[]) > 0 AND n IS NOT NULL
)
SELECT key, token, acquired_at,
    coalesce((SELECT o.expires_at FROM own o WHERE o.id = t.lease_id), acquired_at + ($11::interval[])[array_position($10::uuid[], t.lease_id)]),
    watched, keepable
FROM taken t

-- name: ask
-- Grants free and dead keys, or enqueues (promises 1, 3, 5 and 9): see the function. If the
-- sidecar is too old for the schema, the condition fails before the function is called.
-- $1 namespace, $2 not after, $3 may wait, $4 instance, $5 pod, $6 keys, $7 attempts, $8 leases,
-- $9 ttls (0: a session's lock), $10 min_holds (0: none), $11 skips, $12 sessions, $13 owners, $14 datas,
-- $15 traceparents, $16 limits of holders (0: none; null: no share), $17 last tokens, or null
SELECT ord, state, dead, to_reap, queue_position, result, watched, ended, handed_by, cohort, alone, keepable, recall, (shown).*
FROM locksidecar.ask($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17)
WHERE (SELECT locksidecar.may_take(:schema_version))
