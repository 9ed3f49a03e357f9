-- first_waiters returns the first living waiters of a key: those who are told to look.
CREATE OR REPLACE FUNCTION locksidecar.first_waiters(
    ns text, k text, most integer, OUT hints uuid[], OUT hint_instances text[])
LANGUAGE sql STABLE AS $$
    SELECT array_agg(f.grant_id ORDER BY f.id), array_agg(f.instance ORDER BY f.id)
    FROM (
        SELECT q.id, q.grant_id, o.instance
        FROM locksidecar.waiters q JOIN locksidecar.leases o ON o.id = q.lease_id
        WHERE q.namespace = ns AND q.key = k AND q.outcome IS NULL
        AND q.id > (SELECT served FROM locksidecar.locks WHERE namespace = ns AND key = k)
        AND o.expires_at > clock_timestamp() AND NOT o.hold_pending
        ORDER BY q.id LIMIT most
    ) f
$$;

-- end_hold makes the lease of a session's lock one that holds nothing: the lock was given
-- back, or is being broken. It ends as any other does, when it is buried or not renewed.
CREATE OR REPLACE FUNCTION locksidecar.end_hold(s locksidecar.leases) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF s.hold_until > clock_timestamp() AND s.renewed AND NOT s.hold_pending THEN
        UPDATE locksidecar.leases o
        SET hold_until = NULL, expires_at = least(o.expires_at, clock_timestamp() + o.ttl)
        WHERE o.id = s.id AND NOT o.hold_pending;
    END IF;
END
$$;

-- end_lease ends the lease, as it was read, of a lock that comes to an end, if nothing else
-- rides on it. A lease without a hold that sidecars renew never gets one, and is left.
CREATE OR REPLACE FUNCTION locksidecar.end_lease(s locksidecar.leases) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF s.renewed AND s.hold_until IS NULL THEN
        RETURN;
    END IF;
    DELETE FROM locksidecar.leases o WHERE o.id = s.id AND (NOT o.renewed OR o.hold_pending);
    PERFORM locksidecar.end_hold(s);
END
$$;

-- pass_on ends the grant of a key, whose row the caller has locked and read, and then the
-- lease that held it, and gives the key to the first living waiter; it frees the key only
-- when no waiter remains (invariant 5). Outcomes: granted, freed, and expired: only waiters
-- with expired leases remain. Expired is not dead, they may be renewing in this moment: they
-- must be buried in transactions of their own, and the key be handed off again.
-- "expired" names their leases, and after a grant those that were passed over.
-- Whoever is first in line afterwards is to be told (hints, hint_instances) when the
-- new holder's lease may end before the old one's would have: it looks again when
-- that one ends. Leases of the same TTL are renewed too often for that. ended is the
-- token of the grant that came to an end here, if nobody who watches was told of that
-- before: the grant of a lock that was released, and kept by its hold, had ended then.
-- by_release is the trace context of the release that is the reason, or empty.
CREATE OR REPLACE FUNCTION locksidecar.pass_on(
    l locksidecar.locks, held locksidecar.leases, by_release text,
    OUT outcome text, OUT expired uuid[], OUT grant_id uuid, OUT lease_id uuid, OUT instance text,
    OUT token bigint, OUT acquired_at timestamptz, OUT expires_at timestamptz,
    OUT hints uuid[], OUT hint_instances text[], OUT watched boolean, OUT ended bigint)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    next record;
    w locksidecar.waiters;
    s locksidecar.leases;
    g record;
    alive boolean;
BEGIN
    pass_on.watched := l.watched;
    LOOP
        -- Its lease is locked: from here on it cannot be buried.
        SELECT q AS waiter, o AS lease, EXISTS (
            SELECT FROM locksidecar.waiters p
            WHERE p.namespace = l.namespace AND p.key = l.key AND p.id > l.served AND p.id < q.id AND p.outcome IS NULL) AS passes
        INTO next
        FROM locksidecar.waiters q JOIN locksidecar.leases o ON o.id = q.lease_id
        WHERE q.namespace = l.namespace AND q.key = l.key AND q.id > l.served AND q.outcome IS NULL
        AND o.expires_at > clock_timestamp() AND NOT o.hold_pending
        ORDER BY q.id LIMIT 1 FOR KEY SHARE OF o;
        EXIT WHEN NOT FOUND;
        w := next.waiter;
        s := next.lease;
        DELETE FROM locksidecar.waiters q WHERE q.id = w.id;
        CONTINUE WHEN NOT FOUND; -- it cancelled
        IF next.passes THEN
            SELECT array_agg(DISTINCT q.lease_id) INTO expired FROM locksidecar.waiters q
            WHERE q.namespace = l.namespace AND q.key = l.key AND q.id > l.served AND q.id < w.id AND q.outcome IS NULL;
            w.id := NULL;
        END IF;

        PERFORM locksidecar.end_lease(held);
        g := locksidecar.give(w, s.instance, s.pod, by_release);
        pass_on.token := g.token; pass_on.acquired_at := g.acquired_at;
        pass_on.expires_at := coalesce(g.expires_at, s.expires_at);
        IF held.id IS NULL OR coalesce(w.ttl, s.ttl) < held.ttl OR held.hold_until > pass_on.expires_at THEN
            SELECT f.hints, f.hint_instances INTO pass_on.hints, pass_on.hint_instances
            FROM locksidecar.first_waiters(l.namespace, l.key, 1) f;
        END IF;
        outcome := 'granted'; pass_on.grant_id := w.grant_id; pass_on.lease_id := w.lease_id;
        pass_on.instance := s.instance;
        IF l.grant_id IS NOT NULL THEN
            ended := l.token;
        END IF;
        RETURN;
    END LOOP;

    DELETE FROM locksidecar.waiters q WHERE q.namespace = l.namespace AND q.key = l.key AND q.id > l.served
    AND NOT EXISTS (SELECT FROM locksidecar.leases o WHERE o.id = q.lease_id AND NOT o.hold_pending);
    SELECT array_agg(DISTINCT q.lease_id) INTO expired FROM locksidecar.waiters q
    WHERE q.namespace = l.namespace AND q.key = l.key AND q.id > l.served AND q.outcome IS NULL;
    IF expired IS NOT NULL THEN
        outcome := 'expired';
        RETURN;
    END IF;

    outcome := 'freed';
    IF l.grant_id IS NOT NULL THEN
        ended := l.token;
    END IF;
    alive := EXISTS (
        SELECT FROM locksidecar.leases o
        WHERE o.id = l.lease_id AND o.expires_at > clock_timestamp() AND NOT o.hold_pending);
    UPDATE locksidecar.locks
    SET lease_id = NULL, grant_id = CASE WHEN alive THEN NULL ELSE l.grant_id END,
        contended = false, stopping = NULL, stop_reason = NULL, freed_at = clock_timestamp()
    WHERE namespace = l.namespace AND key = l.key;
    PERFORM locksidecar.end_lease(held);
END
$$;

-- hand_off is pass_on for a key that is held by from_lease (under from_token, unless that
-- is null). Otherwise its outcome is other: somebody else has it, nothing changed.
CREATE OR REPLACE FUNCTION locksidecar.hand_off(
    ns text, k text, from_lease uuid, from_token bigint, by_release text,
    OUT outcome text, OUT expired uuid[], OUT grant_id uuid, OUT lease_id uuid, OUT instance text,
    OUT token bigint, OUT acquired_at timestamptz, OUT expires_at timestamptz,
    OUT hints uuid[], OUT hint_instances text[], OUT watched boolean, OUT ended bigint)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    l locksidecar.locks;
    held locksidecar.leases;
BEGIN
    SELECT * INTO l FROM locksidecar.locks WHERE namespace = ns AND key = k FOR UPDATE;
    IF NOT FOUND OR l.lease_id IS DISTINCT FROM from_lease OR l.token <> from_token THEN
        outcome := 'other'; hand_off.watched := false;
        RETURN;
    END IF;
    SELECT * INTO held FROM locksidecar.leases s WHERE s.id = l.lease_id;
    SELECT * INTO outcome, expired, hand_off.grant_id, hand_off.lease_id, hand_off.instance, hand_off.token,
        hand_off.acquired_at, hand_off.expires_at, hand_off.hints, hand_off.hint_instances, hand_off.watched, ended
    FROM locksidecar.pass_on(l, held, by_release);
END
$$;

-- hand_off_keys hands off several keys.
CREATE OR REPLACE FUNCTION locksidecar.hand_off_keys(
    namespaces text[], keys text[], leases uuid[], tokens bigint[], traceparents text[])
RETURNS TABLE (
    namespace text, key text, outcome text, expired uuid[], grant_id uuid, lease_id uuid, instance text,
    token bigint, acquired_at timestamptz, expires_at timestamptz, hints uuid[], hint_instances text[],
    watched boolean, ended bigint, now timestamptz)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    a record;
BEGIN
    PERFORM locksidecar.in_epoch();
    FOR a IN
        SELECT * FROM unnest(namespaces, keys, leases, tokens, traceparents)
            AS u (namespace, key, lease_id, token, traceparent)
        ORDER BY u.namespace COLLATE "C", u.key COLLATE "C"
    LOOP
        RETURN QUERY SELECT a.namespace, a.key, h.*, clock_timestamp()
        FROM locksidecar.hand_off(a.namespace, a.key, a.lease_id, a.token, a.traceparent) h;
    END LOOP;
END
$$;
