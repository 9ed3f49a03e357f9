-- first_waiters returns the first living waiters of a key, which should check again.
CREATE OR REPLACE FUNCTION locksidecar.first_waiters(
    ns text, k text, most integer, OUT hints uuid[], OUT hint_instances text[])
LANGUAGE plpgsql STABLE AS $$
BEGIN
    SELECT array_agg(f.attempt_id ORDER BY f.id), array_agg(f.instance ORDER BY f.id)
    INTO hints, hint_instances
    FROM (
        SELECT q.id, q.attempt_id, o.instance
        FROM locksidecar.waiters q JOIN locksidecar.leases o ON o.id = q.lease_id
        WHERE q.namespace = ns AND q.key = k AND q.outcome IS NULL
        AND q.id > (SELECT queue_after FROM locksidecar.locks WHERE namespace = ns AND key = k)
        AND o.expires_at > clock_timestamp()
        ORDER BY q.id LIMIT most
    ) f;
END
$$;

-- to_check_again is a hand-over that grants nothing. The first waiters of the key check again.
CREATE OR REPLACE FUNCTION locksidecar.to_check_again(
    l locksidecar.locks, its_outcome text, most integer, OUT handed locksidecar.hand_over)
LANGUAGE plpgsql STABLE AS $$
BEGIN
    handed.outcome := its_outcome; handed.watched := false; handed.now := clock_timestamp();
    SELECT f.hints, f.hint_instances INTO handed.hints, handed.hint_instances
    FROM locksidecar.first_waiters(l.namespace, l.key, most) f;
END
$$;

-- pass_on does with rows, for the end of an exclusive grant, what Op.handOff in store/key/settle.go does for the other stores, in fewer lines.
--
-- pass_on ends the grant of a key, and its lease if it belongs to this lock alone, and gives the key to the
-- first living waiter. The caller has locked the lock row and read the lease, and no min_hold keeps the key.
-- The key becomes free only if no waiter remains (promise 5). In the quiet time nothing is granted: see hold_quiet.
-- After a grant, to_reap contains the leases of waiters that were passed over.
--
-- If the new holder's lease can end earlier than the old one, the next first waiter must check again then
-- (hints). Waiters under the same lease end with it, so they need not check. Leases with the same TTL are
-- renewed too often to matter. ended is the token of the grant that ends here, for watchers. It is null if that
-- grant was released before, and only its min_hold was pending. by_release is the trace context of the release,
-- or empty. slot is not null if the grant is a share. Then the caller calls pass_shares for the waiters behind
-- it.
CREATE OR REPLACE FUNCTION locksidecar.pass_on(
    l locksidecar.locks, held locksidecar.leases, by_release text, OUT handed locksidecar.hand_over)
LANGUAGE plpgsql AS $$
DECLARE
    next record;
    w locksidecar.waiters;
    s locksidecar.leases;
    g record;
    alive boolean;
BEGIN
    handed.watched := l.watched; handed.now := clock_timestamp();
    LOOP
        -- The lock on its lease keeps it from being reaped.
        SELECT q AS waiter, o AS lease, EXISTS (
            SELECT FROM locksidecar.waiters p
            WHERE p.namespace = l.namespace AND p.key = l.key AND p.id > l.queue_after AND p.id < q.id AND p.outcome IS NULL) AS passes,
            (SELECT m.quiet_until FROM locksidecar.meta m WHERE m.quiet_until > clock_timestamp()) AS quiet
        INTO next
        FROM locksidecar.waiters q JOIN locksidecar.leases o ON o.id = q.lease_id
        WHERE q.namespace = l.namespace AND q.key = l.key AND q.id > l.queue_after AND q.outcome IS NULL
        AND o.expires_at > clock_timestamp()
        ORDER BY q.id LIMIT 1 FOR KEY SHARE OF o;
        EXIT WHEN NOT FOUND;
        IF next.quiet IS NOT NULL THEN
            handed.outcome := 'hold_pending';
            IF EXISTS (SELECT FROM locksidecar.leases o WHERE o.id = l.lease_id AND o.expires_at > clock_timestamp()) THEN
                handed.ended := l.token; -- it was released: a reap leaves this event to the hand-off
                l.attempt_id := NULL;
            END IF;
            PERFORM locksidecar.hold_quiet(l, next.quiet);
            DELETE FROM locksidecar.leases o WHERE o.id = held.id AND NOT o.renewed;
            SELECT f.hints, f.hint_instances INTO handed.hints, handed.hint_instances
            FROM locksidecar.first_waiters(l.namespace, l.key, 100) f;
            RETURN;
        END IF;
        w := next.waiter;
        s := next.lease;
        DELETE FROM locksidecar.waiters q WHERE q.id = w.id;
        CONTINUE WHEN NOT FOUND; -- cancelled
        IF next.passes THEN
            SELECT array_agg(DISTINCT q.lease_id) INTO handed.to_reap FROM locksidecar.waiters q
            WHERE q.namespace = l.namespace AND q.key = l.key AND q.id > l.queue_after AND q.id < w.id AND q.outcome IS NULL;
            w.id := NULL; -- so give does not move queue_after past them: they wait if their leases are renewed
        END IF;

        DELETE FROM locksidecar.leases o WHERE o.id = held.id AND NOT o.renewed;
        g := locksidecar.give(w, s.instance, s.pod, by_release, false);
        handed.token := g.token; handed.acquired_at := g.acquired_at; handed.slot := g.slot;
        handed.expires_at := CASE WHEN w.ttl IS NULL THEN greatest(g.expires_at, s.expires_at) ELSE g.expires_at END;
        IF held.id IS NULL OR coalesce(w.ttl, s.ttl) < held.ttl OR l.hold_until > handed.expires_at THEN
            SELECT ARRAY[q.attempt_id], ARRAY[o.instance] INTO handed.hints, handed.hint_instances
            FROM locksidecar.waiters q JOIN locksidecar.leases o ON o.id = q.lease_id
            WHERE q.namespace = l.namespace AND q.key = l.key AND q.id > l.queue_after AND q.outcome IS NULL
            AND (q.lease_id <> s.id OR w.ttl IS NOT NULL) AND o.expires_at > clock_timestamp()
            ORDER BY q.id LIMIT 1;
        END IF;
        handed.outcome := 'granted'; handed.attempt_id := w.attempt_id; handed.lease_id := w.lease_id;
        handed.instance := s.instance; handed.now := clock_timestamp();
        IF l.attempt_id <> locksidecar.shared_lease() AND l.share_limit IS NULL THEN
            handed.ended := l.token;
        END IF;
        RETURN;
    END LOOP;

    DELETE FROM locksidecar.waiters q WHERE q.namespace = l.namespace AND q.key = l.key AND q.id > l.queue_after
    AND NOT EXISTS (SELECT FROM locksidecar.leases o WHERE o.id = q.lease_id);
    SELECT array_agg(DISTINCT q.lease_id) INTO handed.to_reap FROM locksidecar.waiters q
    WHERE q.namespace = l.namespace AND q.key = l.key AND q.id > l.queue_after AND q.outcome IS NULL;
    IF handed.to_reap IS NOT NULL THEN
        handed.outcome := 'waiters_expired';
        RETURN;
    END IF;

    handed.outcome := 'freed';
    IF l.attempt_id <> locksidecar.shared_lease() AND l.share_limit IS NULL THEN
        handed.ended := l.token;
    END IF;
    alive := EXISTS (SELECT FROM locksidecar.leases o WHERE o.id = l.lease_id AND o.expires_at > clock_timestamp());
    UPDATE locksidecar.locks
    SET lease_id = NULL, attempt_id = CASE WHEN alive THEN NULL ELSE l.attempt_id END,
        contended = false, stopping = NULL, stop_reason = NULL, freed_at = clock_timestamp(), hold_until = NULL, share_limit = NULL
    WHERE namespace = l.namespace AND key = l.key;
    DELETE FROM locksidecar.leases o WHERE o.id = held.id AND NOT o.renewed;
END
$$;

-- granted_token returns the token of the grant in a lock row for a token of its cohort.
CREATE OR REPLACE FUNCTION locksidecar.granted_token(granted bigint, claimed bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN claimed BETWEEN granted AND granted + 255 THEN granted ELSE claimed END
$$;

-- cohort returns the waiters that the holder's sidecar may serve next without the store: the longest run of
-- plain waiters directly behind the grant, under the same lease. So the order of the queue is kept (promise
-- 5). Their rows stay until a release or amend names them as served, so each result for a grant begins like the
-- one before, except for waiters that left. The 255 tokens after the grant's suffice for all that it names. If
-- the lease dies, the waiters are deleted with it.
CREATE OR REPLACE FUNCTION locksidecar.cohort(ns text, k text) RETURNS uuid[]
LANGUAGE plpgsql STABLE AS $$
DECLARE
    l record;
    q record;
    waiters uuid[];
BEGIN -- a loop costs about half of one statement with a window
    SELECT s.id AS lease_id, h.queue_after INTO l
    FROM locksidecar.locks h JOIN locksidecar.leases s ON s.id = h.lease_id
    WHERE h.namespace = ns AND h.key = k AND s.renewed
    AND h.contended AND NOT h.watched AND h.hold_until IS NULL AND h.stopping IS NULL;
    IF FOUND THEN
        FOR q IN
            SELECT w.attempt_id, w.lease_id = l.lease_id AND w.ttl IS NULL AND w.min_hold IS NULL AND NOT w.skip AND w.share_limit IS NULL AS plain
            FROM locksidecar.waiters w
            WHERE w.namespace = ns AND w.key = k AND w.id > l.queue_after AND w.outcome IS NULL
            ORDER BY w.id LIMIT 255
        LOOP
            EXIT WHEN NOT q.plain;
            waiters := waiters || q.attempt_id;
        END LOOP;
    END IF;
    RETURN waiters;
END
$$;

-- hand_off passes on keys that are held under these leases, and under these tokens unless they are null. Shared
-- keys are held under shared_lease(), or a reaped lease of a share, and are settled. A key with another holder
-- does not change, and has no row. If a min_hold keeps the key, or the share of a reaped lease, its first
-- waiters check again when it is over (hints), because they may expect a later end.
CREATE OR REPLACE FUNCTION locksidecar.hand_off(
    namespaces text[], keys text[], leases uuid[], tokens bigint[], traceparents text[])
RETURNS TABLE (namespace text, key text, handed locksidecar.hand_over)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    a record;
    l locksidecar.locks;
    s locksidecar.leases;
    reaped boolean; -- it is the lease of a share
BEGIN
    PERFORM locksidecar.in_history();
    FOR a IN
        SELECT * FROM unnest(namespaces, keys, leases, tokens, traceparents)
            AS u (namespace, key, lease_id, token, traceparent)
        ORDER BY u.namespace COLLATE "C", u.key COLLATE "C"
    LOOP
        SELECT * INTO l FROM locksidecar.locks WHERE namespace = a.namespace AND key = a.key FOR UPDATE;
        reaped := l.share_limit IS NOT NULL AND EXISTS (
            SELECT FROM locksidecar.shares h WHERE h.namespace = a.namespace AND h.key = a.key AND h.lease_id = a.lease_id);
        CONTINUE WHEN NOT reaped AND l.lease_id IS DISTINCT FROM a.lease_id OR l.token <> a.token;
        hand_off.namespace := a.namespace; hand_off.key := a.key;
        IF l.hold_until > clock_timestamp() THEN
            hand_off.handed := locksidecar.to_check_again(l, 'hold_pending', 100);
            RETURN NEXT;
            CONTINUE;
        END IF;
        IF l.share_limit IS NULL THEN
            SELECT * INTO s FROM locksidecar.leases WHERE id = l.lease_id;
            hand_off.handed := locksidecar.pass_on(l, s, a.traceparent);
            RETURN NEXT;
        END IF;
        IF EXISTS (SELECT FROM locksidecar.locks k WHERE k.namespace = a.namespace AND k.key = a.key AND k.share_limit IS NOT NULL) THEN
            RETURN QUERY SELECT a.namespace, a.key, p FROM locksidecar.pass_shares(a.namespace, a.key, a.traceparent) p;
        END IF;
        IF reaped AND EXISTS (
            SELECT FROM locksidecar.shares h WHERE h.namespace = a.namespace AND h.key = a.key AND h.lease_id = a.lease_id)
        THEN
            hand_off.handed := locksidecar.to_check_again(l, 'passed', 100);
            RETURN NEXT;
        END IF;
    END LOOP;
END
$$;
