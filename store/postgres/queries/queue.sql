-- name: check
-- Returns what became of waiters, in one snapshot: it sees either a waiter's row or its grant, because the
-- hand-off swaps them in one transaction. A waiter under a dead lease has no position any more. Positions are
-- not counted, because for a long queue that would be quadratic. A server that was just promoted answers
-- nothing, because by its clock a grant could look expired. A grant is returned when the standby has it. For a
-- shared key it returns whether the key must be settled (look), and for a contended one whether a shared waiter
-- waits.
-- $1 namespace, $2 keys, $3 attempts
SELECT a.ord, o.id IS NOT NULL AND w.outcome IS NULL AS queued, o.instance AS keeper,
    o.id IS NOT NULL AND w.outcome IS NOT NULL AS skipped, w.result, l.lease_id AS held_under, coalesce(h.handed_by, l.handed_by),
    t.settle, t.to_reap, l.contended AND l.share_limit IS NULL AND EXISTS (
        SELECT FROM locksidecar.waiters q WHERE q.namespace = $1 AND q.key = a.key AND q.share_limit IS NOT NULL) AS shared_wait,
    coalesce(h.token, l.token), coalesce(h.acquired_at, l.acquired_at), greatest(s.expires_at, l.hold_until, h.hold_until),
    clock_timestamp(), s.id, coalesce(s.instance, l.hold_instance, h.hold_instance), coalesce(s.pod, l.hold_pod, h.hold_pod), s.renewed,
    greatest(l.hold_until, h.hold_until) > clock_timestamp() AND (s.expires_at > clock_timestamp()) IS NOT TRUE, l.keepable,
    coalesce(h.session, l.session), coalesce(h.owner, l.owner), coalesce(h.data, l.data), coalesce(h.traceparent, l.traceparent),
    coalesce(h.stopping, l.stopping), coalesce(h.stop_reason, l.stop_reason), coalesce(h.attempt_id, l.attempt_id),
    NULL::bigint AS waiting, CASE
        WHEN l.share_limit IS NOT NULL THEN l.share_limit
        WHEN l.contended THEN locksidecar.waiting_limit($1, a.key, l.queue_after) END,
    h.slot, CASE WHEN l.share_limit IS NOT NULL AND w.id IS NOT NULL THEN locksidecar.shown($1, a.key, 8, false, NULL) END
FROM unnest($2::text[], $3::uuid[]) WITH ORDINALITY AS a (key, attempt_id, ord)
LEFT JOIN LATERAL (SELECT * FROM locksidecar.waiters WHERE namespace = $1 AND attempt_id = a.attempt_id OFFSET 0) w ON true
LEFT JOIN LATERAL (SELECT * FROM locksidecar.leases WHERE id = w.lease_id OFFSET 0) o ON true
LEFT JOIN LATERAL (SELECT * FROM locksidecar.locks WHERE namespace = $1 AND key = a.key OFFSET 0) l ON true
LEFT JOIN LATERAL (
    SELECT * FROM locksidecar.shares
    WHERE l.share_limit IS NOT NULL AND namespace = $1 AND key = a.key AND attempt_id = a.attempt_id
    ORDER BY token DESC LIMIT 1) h ON true
LEFT JOIN LATERAL (SELECT * FROM locksidecar.leases WHERE id = coalesce(h.lease_id, l.lease_id) OFFSET 0) s ON true
LEFT JOIN LATERAL (SELECT * FROM locksidecar.look($1, a.key) WHERE l.share_limit IS NOT NULL OFFSET 0) t ON true
WHERE (SELECT locksidecar.in_history())
AND CASE WHEN a.attempt_id IN (l.attempt_id, h.attempt_id) THEN locksidecar.replicated() ELSE true END

-- name: note_delivery
-- Records that a second instance delivers a bind:ttl grant, so that neither may hand it back as undelivered. No
-- row: the grant is over. The lock row decides, also against a release in flight, which deletes the lease of a
-- share, too.
-- $1 namespace, $2 key, $3 grant
WITH held AS (
    SELECT CASE
        WHEN l.share_limit IS NULL AND l.attempt_id = $3 THEN l.lease_id
        WHEN l.share_limit IS NOT NULL THEN (
            SELECT h.lease_id FROM locksidecar.shares h WHERE h.namespace = $1 AND h.key = $2 AND h.attempt_id = $3
            ORDER BY h.token DESC LIMIT 1)
    END AS lease_id
    FROM locksidecar.locks l WHERE namespace = $1 AND key = $2 AND (SELECT locksidecar.in_history()) FOR UPDATE
)
UPDATE locksidecar.leases l SET repeated = true FROM held
WHERE l.id = held.lease_id AND l.expires_at > clock_timestamp()
RETURNING true

-- name: cancel_one
-- Deletes one waiter, and returns its position. It waits for a hand-off that is in flight; if there is no row
-- then, the lock may be granted. A skipped waiter is deleted with its result. A position that another instance
-- keeps, because the attempt was repeated there, stays.
-- $1 namespace, $2 grant, $3 not after, $4 instance
DELETE FROM locksidecar.waiters w
WHERE namespace = $1 AND attempt_id = $2 AND clock_timestamp() < $3
AND NOT EXISTS (SELECT FROM locksidecar.leases o WHERE o.id = w.lease_id AND o.instance <> $4)
RETURNING attempt_id, outcome IS NOT NULL, result, (
    SELECT count(*) FROM locksidecar.waiters q
    WHERE q.namespace = w.namespace AND q.key = w.key AND q.id <= w.id AND q.outcome IS NULL
    AND q.id > (SELECT queue_after FROM locksidecar.locks l WHERE l.namespace = w.namespace AND l.key = w.key))

-- name: cancel_many
-- cancel_one for many waiters, without a wait. A locked waiter is being granted or dropped, so the
-- caller cancels it alone. Each queue is counted once: from one of these waiters to the next.
-- $1 namespace, $2 attempts, $3 not after, $4 instance
WITH gone AS MATERIALIZED (
    SELECT id, attempt_id, key, outcome, result FROM locksidecar.waiters c
    WHERE namespace = $1 AND attempt_id = ANY ($2) AND clock_timestamp() < $3
    AND NOT EXISTS (SELECT FROM locksidecar.leases o WHERE o.id = c.lease_id AND o.instance <> $4)
    ORDER BY id FOR UPDATE SKIP LOCKED
), deleted AS (
    DELETE FROM locksidecar.waiters WHERE id IN (SELECT id FROM gone)
)
SELECT attempt_id, outcome IS NOT NULL, result, (sum(since) OVER (PARTITION BY key ORDER BY id))::bigint
FROM (
    SELECT g.*, (
        SELECT count(*) FROM locksidecar.waiters q
        WHERE q.namespace = $1 AND q.key = g.key AND q.id > g.before AND q.id <= g.id AND q.outcome IS NULL) AS since
    FROM (
        SELECT *, coalesce(lag(id) OVER (PARTITION BY key ORDER BY id), (
            SELECT queue_after FROM locksidecar.locks l WHERE l.namespace = $1 AND l.key = gone.key), 0) AS before
        FROM gone) g
) counted

-- name: withdraw
-- Frees what attempts of unknown outcome hold or wait for (promise 9): see the function. Each row has the time
-- before the first row was locked. If nothing is freed, one row has only this time.
-- $1 namespace, $2 not after, $3 instance, $4 keys, $5 attempts
SELECT coalesce(w.key, ''), coalesce(w.lapsed, false), began.at, (w.handed).*
FROM (SELECT clock_timestamp() AS at OFFSET 0) began
LEFT JOIN LATERAL (SELECT * FROM locksidecar.withdraw($1, $2, $3, $4, $5) OFFSET 0) w ON true
