-- amend checks claims, and changes the data of locks, and the remaining time of unrenewed leases. An outdated primary does not
-- even answer that a lock is held (in_history). From then on the holder's instance no longer may keep the key, because its waiters
-- learn that a session has it. States: see claim_status.
CREATE OR REPLACE FUNCTION locksidecar.amend(
    ns text, not_after timestamptz, its_instance text, keys text[], tokens bigint[], leases uuid[], ttls interval[],
    set_datas boolean[], datas text[])
RETURNS TABLE (
    ord bigint, state text, shown locksidecar.shown_lock,
    -- the first waiter for a lock whose remaining time was set, or that was keepable
    hints uuid[], hint_instances text[])
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    c record;
    l locksidecar.locks;
    s locksidecar.leases;
BEGIN
    PERFORM locksidecar.in_history();
    FOR c IN
        SELECT * FROM unnest(keys, tokens, leases, ttls, set_datas, datas)
            WITH ORDINALITY AS u (key, token, lease_id, ttl, set_data, data, ord)
        ORDER BY u.key COLLATE "C", u.ord
    LOOP
        IF c.set_data OR c.ttl > interval '0'
            OR EXISTS (SELECT FROM locksidecar.locks k WHERE k.namespace = ns AND k.key = c.key AND k.keepable)
        THEN
            SELECT * INTO l FROM locksidecar.locks WHERE namespace = ns AND key = c.key FOR UPDATE;
            PERFORM locksidecar.in_time(not_after);
        ELSE -- a check locks nothing, so its commit flushes nothing
            SELECT * INTO l FROM locksidecar.locks WHERE namespace = ns AND key = c.key;
        END IF;
        IF l.share_limit IS NOT NULL THEN
            l := locksidecar.as_lock(l, c.token, NULL);
        END IF;
        SELECT * INTO s FROM locksidecar.leases WHERE id = l.lease_id;
        amend.state := locksidecar.claim_status(c.token, c.lease_id, its_instance, l, s);
        amend.hints := NULL; amend.hint_instances := NULL;

        IF amend.state = 'holds' AND c.ttl > interval '0' AND NOT s.renewed THEN
            UPDATE locksidecar.leases
            SET ttl = c.ttl, expires_at = greatest(clock_timestamp() + c.ttl, l.hold_until)
            WHERE id = s.id AND expires_at > clock_timestamp()
            RETURNING * INTO s;
            IF NOT FOUND THEN
                amend.state := 'expired';
            ELSIF l.contended THEN
                SELECT f.hints, f.hint_instances INTO amend.hints, amend.hint_instances
                FROM locksidecar.first_waiters(ns, c.key, 1) f;
            END IF;
        END IF;
        IF amend.state = 'holds' AND l.keepable AND l.contended THEN
            SELECT f.hints, f.hint_instances INTO amend.hints, amend.hint_instances
            FROM locksidecar.first_waiters(ns, c.key, 1) f;
        END IF;
        IF amend.state = 'holds' AND (c.set_data OR l.keepable) THEN
            l.keepable := false;
            IF c.set_data THEN
                l.data := c.data;
            END IF;
            PERFORM locksidecar.write_back(l);
        END IF;

        amend.ord := c.ord;
        shown := locksidecar.show(l, s,
            (SELECT count(*) FROM locksidecar.waiters q
                WHERE q.namespace = ns AND q.key = c.key AND q.id > l.queue_after AND q.outcome IS NULL),
            coalesce(l.share_limit, CASE WHEN l.contended THEN locksidecar.waiting_limit(ns, c.key, l.queue_after) END),
            CASE WHEN l.share_limit IS NOT NULL THEN locksidecar.slot_of(l) END,
            CASE WHEN l.share_limit IS NOT NULL THEN locksidecar.shown(ns, c.key, 1, false, l.token) END);
        RETURN NEXT;
    END LOOP;
END
$$;

-- adopt makes the last served waiter of each cohort the holder that the row knows, unless the row knows it already, or a later
-- one, and amends the lock. The served waiters leave the queue. ended is the token of the previous holder if this one is new and
-- the key has watchers. It does not adopt for a share: the store knows that by its own token.
CREATE OR REPLACE FUNCTION locksidecar.adopt(
    ns text, not_after timestamptz, its_instance text, keys text[], tokens bigint[], leases uuid[], ttls interval[],
    set_datas boolean[], datas text[], served text[], sessions text[], owners text[], acquired timestamptz[], traceparents text[])
RETURNS TABLE (
    ord bigint, state text, shown locksidecar.shown_lock, hints uuid[], hint_instances text[], ended bigint)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    c record;
    l locksidecar.locks;
    s locksidecar.leases;
    ends bigint[]; -- by ord
BEGIN
    PERFORM locksidecar.in_history();
    FOR c IN
        SELECT * FROM unnest(keys, tokens, leases, datas, served, sessions, owners, acquired, traceparents)
            WITH ORDINALITY AS u (key, token, lease_id, data, served, session, owner, acquired_at, traceparent, ord)
        ORDER BY u.key COLLATE "C", u.ord
    LOOP
        SELECT * INTO l FROM locksidecar.locks WHERE namespace = ns AND key = c.key FOR UPDATE;
        PERFORM locksidecar.in_time(not_after);
        PERFORM locksidecar.drop_served(ns, c.key, c.served);
        SELECT * INTO s FROM locksidecar.leases WHERE id = l.lease_id;
        IF l.share_limit IS NULL AND c.token > l.token
            AND locksidecar.claim_status(locksidecar.granted_token(l.token, c.token), c.lease_id, its_instance, l, s) = 'holds'
        THEN
            IF l.watched THEN
                ends[c.ord] := l.token;
            END IF;
            UPDATE locksidecar.locks
            SET token = c.token, attempt_id = right(c.served, 36)::uuid, session = c.session, owner = c.owner,
                acquired_at = greatest(acquired_at, c.acquired_at), traceparent = c.traceparent, data = c.data
            WHERE namespace = ns AND key = c.key;
        END IF;
    END LOOP;
    RETURN QUERY SELECT a.*, ends[a.ord]
    FROM locksidecar.amend(ns, not_after, its_instance, keys, tokens, leases, ttls, set_datas, datas) a;
END
$$;

-- downgrade amends locks, and makes exclusive ones shares. Then the caller hands the keys on, and reads the locks again: shown is
-- the lock before. The rows are locked first, because amend locks only those that it changes.
CREATE OR REPLACE FUNCTION locksidecar.downgrade(
    ns text, not_after timestamptz, its_instance text, keys text[], tokens bigint[], leases uuid[], ttls interval[],
    set_datas boolean[], datas text[])
RETURNS TABLE (
    ord bigint, state text, shown locksidecar.shown_lock, hints uuid[], hint_instances text[])
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    k text;
    a record;
    l locksidecar.locks;
BEGIN
    PERFORM locksidecar.in_history();
    FOR k IN SELECT DISTINCT u.key COLLATE "C" AS key FROM unnest(keys) AS u (key) ORDER BY key LOOP
        PERFORM FROM locksidecar.locks WHERE namespace = ns AND key = k FOR UPDATE;
        PERFORM locksidecar.in_time(not_after);
    END LOOP;
    FOR a IN SELECT * FROM locksidecar.amend(ns, not_after, its_instance, keys, tokens, leases, ttls, set_datas, datas) LOOP
        downgrade.ord := a.ord; downgrade.state := a.state; downgrade.shown := a.shown;
        downgrade.hints := a.hints; downgrade.hint_instances := a.hint_instances;
        IF a.state = 'holds' THEN
            SELECT * INTO l FROM locksidecar.locks WHERE namespace = ns AND key = keys[a.ord];
            IF l.share_limit IS NULL AND NOT locksidecar.make_share(l) THEN
                downgrade.state := 'expired';
            END IF;
        END IF;
        RETURN NEXT;
    END LOOP;
END
$$;
