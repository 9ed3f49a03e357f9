-- Shared keys: see Shares in doc.go. Each function is called with the lock row locked, and reads the shares in
-- a later statement of its own. So it sees all earlier changes made under the lock.

-- shared_lease is in locks.lease_id while a key is shared. No lease has this id. So statements for exclusive
-- locks see the key as held by an unknown holder.
CREATE OR REPLACE FUNCTION locksidecar.shared_lease() RETURNS uuid
LANGUAGE sql IMMUTABLE AS $$
    SELECT '00000000-0000-0000-0000-000000000001'::uuid
$$;

-- as_lock returns a share as if it were the exclusive lock of its key, by its attempt or its token. If there is
-- no such share, it returns the lock row unchanged, and claim_status reports how the youngest share ended.
CREATE OR REPLACE FUNCTION locksidecar.as_lock(l locksidecar.locks, by_token bigint, by_attempt uuid) RETURNS locksidecar.locks
LANGUAGE plpgsql STABLE AS $$
DECLARE
    h locksidecar.shares;
BEGIN
    -- Each has an index. With OR, all shares of the key would be read.
    IF by_attempt IS NOT NULL THEN
        SELECT * INTO h FROM locksidecar.shares s
        WHERE s.namespace = l.namespace AND s.key = l.key AND s.attempt_id = by_attempt ORDER BY s.token DESC LIMIT 1;
    END IF;
    IF h.token IS NULL AND by_token IS NOT NULL THEN
        SELECT * INTO h FROM locksidecar.shares s WHERE s.namespace = l.namespace AND s.key = l.key AND s.token = by_token;
    END IF;
    IF h.token IS NOT NULL THEN
        l.lease_id := h.lease_id; l.token := h.token; l.attempt_id := h.attempt_id;
        l.session := h.session; l.owner := h.owner; l.acquired_at := h.acquired_at; l.data := h.data;
        l.traceparent := h.traceparent; l.handed_by := h.handed_by; l.stopping := h.stopping; l.stop_reason := h.stop_reason;
        l.hold_until := h.hold_until; l.hold_instance := h.hold_instance; l.hold_pod := h.hold_pod;
    END IF;
    RETURN l;
END
$$;

-- write_back is the inverse of as_lock: it writes what can change of a grant into the lock row, or into the row of the
-- share that l is. The caller knows that there is such a share.
CREATE OR REPLACE FUNCTION locksidecar.write_back(l locksidecar.locks) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF l.share_limit IS NULL THEN
        UPDATE locksidecar.locks k
        SET lease_id = l.lease_id, attempt_id = l.attempt_id, data = l.data, stopping = l.stopping, stop_reason = l.stop_reason,
            hold_until = l.hold_until, keepable = l.keepable
        WHERE k.namespace = l.namespace AND k.key = l.key;
    ELSE
        UPDATE locksidecar.shares h
        SET lease_id = l.lease_id, attempt_id = l.attempt_id, data = l.data, stopping = l.stopping, stop_reason = l.stop_reason,
            hold_until = l.hold_until
        WHERE h.namespace = l.namespace AND h.key = l.key AND h.token = l.token;
    END IF;
END
$$;

-- slot_of returns the slot of a share.
CREATE OR REPLACE FUNCTION locksidecar.slot_of(l locksidecar.locks) RETURNS integer
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (
        SELECT h.slot FROM locksidecar.shares h WHERE h.namespace = l.namespace AND h.key = l.key AND h.token = l.token);
END
$$;

-- free_slot returns the smallest number that no share of a key has.
CREATE OR REPLACE FUNCTION locksidecar.free_slot(ns text, k text) RETURNS integer
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (
        SELECT coalesce(min(x.n) FILTER (WHERE x.slot > x.n), count(*))::integer
        FROM (
            SELECT h.slot, row_number() OVER (ORDER BY h.slot) - 1 AS n
            FROM locksidecar.shares h WHERE h.namespace = ns AND h.key = k
        ) x);
END
$$;

-- shown describes holders of a shared key as JSON: their number, when the next one ends, and the first ones in
-- token order. Null: there are none. living: omit holders whose lease has expired and is not reaped. only: only
-- the holder under this token. Times are in microseconds from now. In the quiet time, the next end is not later
-- than its end, so that waiters check then.
CREATE OR REPLACE FUNCTION locksidecar.shown(ns text, k text, most bigint, living boolean, only_token bigint) RETURNS text
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (
        SELECT json_build_object(
            'count', max(x.count), 'next_end', least(min(x.lasts),
                (SELECT (extract(epoch FROM m.quiet_until - clock_timestamp()) * 1000000)::bigint
                    FROM locksidecar.meta m WHERE m.quiet_until > clock_timestamp())),
            'holders', json_agg(json_build_object(
                'token', x.token, 'slot', x.slot, 'lease', x.id, 'instance', coalesce(x.instance, x.hold_instance),
                'pod', coalesce(x.pod, x.hold_pod), 'renewed', x.renewed, 'pending', NOT x.alive,
                'session', x.session, 'owner', x.owner, 'data', x.data, 'traceparent', x.traceparent,
                'acquired_at', (extract(epoch FROM x.acquired_at) * 1000000)::bigint,
                'held_for', (extract(epoch FROM clock_timestamp() - x.acquired_at) * 1000000)::bigint, 'expires_in', x.lasts,
                'stopping', (extract(epoch FROM x.stopping) * 1000000)::bigint, 'stop_reason', x.stop_reason
            ) ORDER BY x.token) FILTER (WHERE x.n <= most))::text
        FROM (
            SELECT *, row_number() OVER (ORDER BY h.token) AS n
            FROM (
                SELECT h.*, s.id, s.instance, s.pod, s.renewed, count(*) OVER () AS count,
                    coalesce(s.expires_at > clock_timestamp(), false) AS alive,
                    coalesce((extract(epoch FROM greatest(s.expires_at, h.hold_until) - clock_timestamp()) * 1000000)::bigint, 0) AS lasts
                FROM locksidecar.shares h LEFT JOIN locksidecar.leases s ON s.id = h.lease_id
                WHERE h.namespace = ns AND h.key = k
                AND (NOT living OR greatest(s.expires_at, h.hold_until) > clock_timestamp())
            ) h
            WHERE only_token IS NULL OR h.token = only_token
        ) x
        HAVING count(*) > 0);
END
$$;

-- look reports whether a shared key must be settled by hand_off: a share is dead, or the first waiter is, or it
-- fits (see pass_shares). to_reap contains the leases to be reaped before: those of shares, and of waiters
-- before the first living one.
CREATE OR REPLACE FUNCTION locksidecar.look(ns text, k text, OUT settle boolean, OUT to_reap uuid[])
LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
DECLARE
    l locksidecar.locks;
    q record;
    n bigint;
BEGIN
    SELECT * INTO l FROM locksidecar.locks WHERE namespace = ns AND key = k;
    SELECT sum(h.n)::bigint, bool_or(NOT h.on_hold AND s.id IS NULL),
        array_agg(s.id) FILTER (WHERE NOT h.on_hold AND s.expires_at <= clock_timestamp())
    INTO n, look.settle, look.to_reap
    FROM (
        SELECT lease_id, coalesce(hold_until > clock_timestamp(), false) AS on_hold, count(*) AS n
        FROM locksidecar.shares WHERE namespace = ns AND key = k GROUP BY 1, 2
    ) h
    LEFT JOIN locksidecar.leases s ON s.id = h.lease_id;
    look.settle := coalesce(look.settle OR look.to_reap IS NOT NULL, true);
    IF l.contended THEN
        FOR q IN
            SELECT w.share_limit, w.attempt_id, o.id, o.expires_at
            FROM locksidecar.waiters w LEFT JOIN locksidecar.leases o ON o.id = w.lease_id
            WHERE w.namespace = ns AND w.key = k AND w.id > l.queue_after AND w.outcome IS NULL ORDER BY w.id
        LOOP
            IF q.expires_at > clock_timestamp() THEN
                look.settle := look.settle OR coalesce(l.share_limit = 0 AND q.share_limit IS NOT NULL OR n < l.share_limit AND q.share_limit IS NOT NULL, false)
                    AND NOT EXISTS (SELECT FROM locksidecar.meta m WHERE m.quiet_until > clock_timestamp())
                    AND NOT EXISTS (
                        SELECT FROM locksidecar.shares h
                        WHERE h.namespace = ns AND h.key = k AND h.attempt_id = q.attempt_id);
                EXIT;
            END IF;
            look.settle := true;
            IF q.id IS NOT NULL THEN
                look.to_reap := array_append(look.to_reap, q.id);
            END IF;
        END LOOP;
    END IF;
END
$$;

-- pass_shares settles a shared key: it drops dead shares, and grants the key to the waiters at the head that
-- fit. An attempt does not fit beside its own share if that is dead and kept by its min_hold. If no share is
-- left, pass_on handles the first waiter, or frees the key (promise 5). There is one row for each dropped
-- share, for watchers (lapsed), and for each grant, as of pass_on. A last row may contain the leases of expired
-- waiters that were passed over, and hints. The next waiter gets a hint, because a new share can end earlier.
-- All waiters get hints in the quiet time, or if a share was dropped beside one whose lease is gone and that
-- its min_hold keeps. The end of such a share is reported when it is released or reaped (hand_off).
CREATE OR REPLACE FUNCTION locksidecar.pass_shares(ns text, k text, by_release text)
RETURNS SETOF locksidecar.hand_over
LANGUAGE plpgsql AS $$
DECLARE
    handed locksidecar.hand_over;
    l locksidecar.locks;
    none locksidecar.leases;
    w locksidecar.waiters;
    s locksidecar.leases;
    g record;
    gone record;
    n bigint;
    its_attempts uuid[]; -- those that have shares of it
    last bigint := 0::bigint; -- waiters up to this id were looked at
    passed uuid[];
    quiet boolean;
    looks integer := 0; -- the number of waiters that should check
    dropped boolean := false; -- a share was
BEGIN
    SELECT * INTO l FROM locksidecar.locks WHERE namespace = ns AND key = k;
    handed.watched := l.watched;
    FOR gone IN
        DELETE FROM locksidecar.shares h
        WHERE h.namespace = ns AND h.key = k AND (h.hold_until > clock_timestamp()) IS NOT TRUE
        AND NOT EXISTS (SELECT FROM locksidecar.leases o WHERE o.id = h.lease_id)
        RETURNING h.token, h.attempt_id
    LOOP
        dropped := true;
        IF gone.attempt_id IS NOT NULL THEN -- otherwise its end was reported at its release
            handed.outcome := 'lapsed'; handed.ended := gone.token; handed.now := clock_timestamp();
            RETURN NEXT handed;
        END IF;
    END LOOP;
    SELECT count(*), array_agg(h.attempt_id) INTO n, its_attempts FROM locksidecar.shares h WHERE h.namespace = ns AND h.key = k;
    IF n = 0 THEN
        handed := locksidecar.pass_on(l, none, by_release);
        RETURN NEXT handed;
        IF handed.slot IS NULL THEN
            RETURN;
        END IF;
        n := 1;
        SELECT * INTO l FROM locksidecar.locks WHERE namespace = ns AND key = k;
    END IF;

    quiet := EXISTS (SELECT FROM locksidecar.meta m WHERE m.quiet_until > clock_timestamp());
    handed := NULL; handed.watched := l.watched;
    WHILE l.contended LOOP
        SELECT q.* INTO w FROM locksidecar.waiters q
        WHERE q.namespace = ns AND q.key = k AND q.id > greatest(l.queue_after, last) AND q.outcome IS NULL
        ORDER BY q.id LIMIT 1;
        EXIT WHEN NOT FOUND;
        last := w.id;
        -- The lock on its lease keeps it from being reaped.
        SELECT * INTO s FROM locksidecar.leases o WHERE o.id = w.lease_id FOR KEY SHARE;
        IF NOT FOUND THEN
            DELETE FROM locksidecar.waiters q WHERE q.id = w.id;
            CONTINUE;
        ELSIF s.expires_at <= clock_timestamp() THEN
            passed := array_append(passed, s.id);
            CONTINUE;
        END IF;
        EXIT WHEN w.share_limit IS NULL OR l.share_limit > 0 AND n >= l.share_limit OR w.attempt_id = ANY (its_attempts);
        IF quiet THEN
            looks := 100;
            EXIT;
        END IF;
        DELETE FROM locksidecar.waiters q WHERE q.id = w.id;
        CONTINUE WHEN NOT FOUND; -- cancelled
        IF passed IS NOT NULL THEN
            w.id := NULL;
        END IF;
        g := locksidecar.give(w, s.instance, s.pod, by_release, false);
        n := n + 1;
        handed.outcome := 'granted'; handed.attempt_id := w.attempt_id; handed.lease_id := w.lease_id;
        handed.instance := s.instance; handed.token := g.token; handed.acquired_at := g.acquired_at;
        handed.expires_at := CASE WHEN w.ttl IS NULL THEN greatest(g.expires_at, s.expires_at) ELSE g.expires_at END;
        handed.slot := g.slot;
        handed.now := clock_timestamp();
        RETURN NEXT handed;
        looks := 1;
    END LOOP;
    IF dropped AND l.contended AND EXISTS (
        SELECT FROM locksidecar.shares h
        WHERE h.namespace = ns AND h.key = k AND h.hold_until > clock_timestamp()
        AND NOT EXISTS (SELECT FROM locksidecar.leases o WHERE o.id = h.lease_id))
    THEN
        looks := 100;
    END IF;
    IF looks > 0 OR passed IS NOT NULL THEN
        handed := locksidecar.to_check_again(l, 'passed', looks);
        handed.to_reap := passed; handed.watched := l.watched;
        RETURN NEXT handed;
    END IF;
END
$$;

-- end_share deletes a share l, seen as a lock, and its lease if it belongs to this lock alone. If the share is
-- the youngest one, the lock row records whether it was released.
CREATE OR REPLACE FUNCTION locksidecar.end_share(l locksidecar.locks, released boolean) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM locksidecar.shares h WHERE h.namespace = l.namespace AND h.key = l.key AND h.token = l.token;
    DELETE FROM locksidecar.leases s WHERE s.id = l.lease_id AND NOT s.renewed;
    IF released THEN
        UPDATE locksidecar.locks k SET attempt_id = NULL
        WHERE k.namespace = l.namespace AND k.key = l.key AND k.token = l.token;
    END IF;
END
$$;

-- make_share turns an exclusive lock into a share, with the limit of the living shared waiters, if any. Its
-- lease s is locked, so a reap either comes before, or finds the share.
CREATE OR REPLACE FUNCTION locksidecar.make_share(l locksidecar.locks) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM locksidecar.leases s WHERE s.id = l.lease_id AND s.expires_at > clock_timestamp() FOR KEY SHARE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    INSERT INTO locksidecar.shares
        (namespace, key, token, lease_id, attempt_id, slot, session, owner, acquired_at, data, traceparent, handed_by,
        stopping, stop_reason, hold_until, hold_instance, hold_pod)
    VALUES (l.namespace, l.key, l.token, l.lease_id, l.attempt_id, 0, l.session, l.owner, l.acquired_at, l.data,
        l.traceparent, l.handed_by, l.stopping, l.stop_reason, l.hold_until, l.hold_instance, l.hold_pod);
    UPDATE locksidecar.locks k
    SET lease_id = locksidecar.shared_lease(), share_limit = coalesce((
            SELECT q.share_limit FROM locksidecar.waiters q JOIN locksidecar.leases o ON o.id = q.lease_id
            WHERE q.namespace = l.namespace AND q.key = l.key AND q.share_limit IS NOT NULL AND q.id > l.queue_after AND q.outcome IS NULL
            AND o.expires_at > clock_timestamp()
            ORDER BY q.id LIMIT 1), 0),
        stopping = NULL, stop_reason = NULL, session = '', owner = '', data = NULL, traceparent = '', handed_by = '',
        hold_until = NULL, hold_instance = NULL, hold_pod = NULL
    WHERE k.namespace = l.namespace AND k.key = l.key;
    RETURN true;
END
$$;

-- waiting_limit returns the limit that the shared waiters of a key name, or null if there are none.
CREATE OR REPLACE FUNCTION locksidecar.waiting_limit(ns text, k text, after bigint) RETURNS integer
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (
        SELECT q.share_limit FROM locksidecar.waiters q JOIN locksidecar.leases o ON o.id = q.lease_id
        WHERE q.namespace = ns AND q.key = k AND q.share_limit IS NOT NULL AND q.id > after AND q.outcome IS NULL
        ORDER BY o.expires_at > clock_timestamp() DESC, q.id LIMIT 1);
END
$$;

-- other_limits reports whether an ask for a share names another limit than the shares, or the shared waiters,
-- of a key. Waiters with an expired lease do not count: these leases must be reaped first (to_reap).
CREATE OR REPLACE FUNCTION locksidecar.other_limits(
    l locksidecar.locks, share_limit integer, OUT mismatch boolean, OUT to_reap uuid[])
LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
BEGIN
    mismatch := l.share_limit <> other_limits.share_limit;
    IF l.share_limit IS NULL THEN
        SELECT coalesce(bool_or(o.expires_at > clock_timestamp()), false),
            array_agg(DISTINCT o.id) FILTER (WHERE o.expires_at <= clock_timestamp())
        INTO other_limits.mismatch, other_limits.to_reap
        FROM locksidecar.waiters q JOIN locksidecar.leases o ON o.id = q.lease_id
        WHERE q.namespace = l.namespace AND q.key = l.key AND q.id > l.queue_after AND q.outcome IS NULL
        AND q.share_limit <> other_limits.share_limit;
    END IF;
END
$$;

-- release_share is release for a claim on a shared key. A claimant that knows of its share gives no success.
-- A session may not know yet that its lock was downgraded. A client without a session may not know that its lock
-- is shared. Its claim is refused, and the share stays. settle: the caller calls pass_shares, once for all claims
-- of the key.
CREATE OR REPLACE FUNCTION locksidecar.release_share(
    whole locksidecar.locks, its_instance text, claimed_token bigint, claimed_lease uuid, undelivered boolean, success boolean,
    result text, at_once boolean, served text,
    OUT state text, OUT acquired_at timestamptz, OUT traceparent text, OUT handed locksidecar.hand_over, OUT settle boolean)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    l locksidecar.locks;
    s locksidecar.leases;
    on_hold boolean;
BEGIN
    release_share.settle := false;
    l := locksidecar.as_lock(whole, claimed_token, NULL);
    SELECT * INTO s FROM locksidecar.leases o WHERE o.id = l.lease_id;
    handed := NULL; handed.watched := l.watched; handed.now := clock_timestamp();
    release_share.acquired_at := l.acquired_at; release_share.traceparent := l.traceparent;
    release_share.state := locksidecar.claim_status(claimed_token, claimed_lease, its_instance, l, s);
    IF undelivered AND release_share.state = 'holds' AND (s.repeated OR s.instance <> its_instance) THEN
        release_share.state := 'other'; -- another instance may have delivered it
    END IF;
    IF success IS NOT NULL AND release_share.state = 'holds' AND claimed_lease = '00000000-0000-0000-0000-000000000000' THEN
        release_share.state := 'share';
        RETURN;
    END IF;
    release_share.settle := served <> '' OR coalesce(success, false);
    PERFORM locksidecar.drop_served(l.namespace, l.key, served);
    IF success AND release_share.state = 'holds' THEN
        UPDATE locksidecar.waiters q SET outcome = 'success', result = release_share.result
        WHERE q.namespace = l.namespace AND q.key = l.key AND q.id > l.queue_after AND q.skip AND q.outcome IS NULL;
    END IF;
    on_hold := coalesce(l.hold_until > clock_timestamp(), false);
    IF l.lease_id = locksidecar.shared_lease() THEN -- there is no such share
        on_hold := false;
    ELSIF on_hold AND NOT (at_once AND (release_share.state = 'holds' OR l.lease_id = claimed_lease)) THEN
        IF release_share.state = 'holds' OR (release_share.state = 'expired' AND s.id IS NOT NULL) THEN
            l.lease_id := gen_random_uuid();
            IF release_share.state = 'holds' THEN
                l.attempt_id := NULL; l.stopping := NULL; l.stop_reason := NULL;
            END IF;
            PERFORM locksidecar.write_back(l);
        END IF;
        IF release_share.state = 'holds' THEN
            handed.outcome := 'hold_pending';
            DELETE FROM locksidecar.leases o WHERE o.id = s.id AND NOT o.renewed;
            UPDATE locksidecar.locks k SET attempt_id = NULL
            WHERE k.namespace = l.namespace AND k.key = l.key AND k.token = l.token;
        END IF;
    ELSIF release_share.state IN ('holds', 'expired') THEN
        PERFORM locksidecar.end_share(l, release_share.state = 'holds');
        handed.outcome := 'ended';
        release_share.settle := true;
    END IF;
    IF handed.outcome IS NOT NULL THEN
        handed.ended := claimed_token;
    END IF;
    IF handed.outcome = 'hold_pending' OR (release_share.state = 'released' AND on_hold) THEN
        SELECT f.hints, f.hint_instances INTO handed.hints, handed.hint_instances
        FROM locksidecar.first_waiters(l.namespace, l.key, 100) f;
    ELSIF handed.outcome IS NULL AND claimed_lease <> '00000000-0000-0000-0000-000000000000' THEN
        -- A repeat: hints to waiters that were granted since may be lost.
        SELECT array_agg(f.attempt_id), array_agg(f.instance) INTO handed.hints, handed.hint_instances
        FROM (
            SELECT h.attempt_id, o.instance
            FROM locksidecar.shares h JOIN locksidecar.leases o ON o.id = h.lease_id
            WHERE h.namespace = l.namespace AND h.key = l.key AND h.token > claimed_token AND h.attempt_id IS NOT NULL
            ORDER BY h.token LIMIT 100) f;
    END IF;
    IF success AND release_share.state IN ('holds', 'released', 'unknown') THEN -- marked waiters no longer wait
        SELECT array_agg(q.attempt_id) || handed.hints, array_agg(o.instance) || handed.hint_instances
        INTO handed.hints, handed.hint_instances
        FROM locksidecar.waiters q JOIN locksidecar.leases o ON o.id = q.lease_id
        WHERE q.namespace = l.namespace AND q.key = l.key AND q.outcome IS NOT NULL;
    END IF;
END
$$;
