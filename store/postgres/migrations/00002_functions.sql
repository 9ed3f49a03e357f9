-- What takes more than one statement is a function: a sidecar that is cut off in
-- the middle of it then leaves no row locked, because the call arrives as a whole
-- or not at all.
--
-- In READ COMMITTED each statement of a function sees what was committed before
-- that statement began. The functions rely on it: they lock a row in one
-- statement and look in the next one. A statement that waits for a row lock must
-- not also decide by another table: it re-checks the row, but keeps its old view
-- of the rest.
--
-- Lock order: lock rows by key, then waiters, then leases. Who locks waiters or
-- deletes leases without having locked the lock row never waits for a second one
-- while it has the first (cancel, bury), so functions may lock waiters and leases
-- in any order behind their lock rows.

-- +goose Up

-- in_epoch is true, or fails with LS001 when the server is another one than that
-- which granted last: a standby was promoted, and what it knows may be older than
-- what was told. Then new_epoch comes first. Statements that grant, and those that
-- bury expired leases, ask it.
-- +goose StatementBegin
CREATE FUNCTION locksidecar.in_epoch() RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    IF (SELECT epoch FROM locksidecar.meta) = substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8) THEN
        RETURN true;
    END IF;
    RAISE EXCEPTION 'the server was promoted since it last granted a lock' USING ERRCODE = 'LS001';
END
$$;
-- +goose StatementEnd

-- new_epoch begins to grant on a server that was promoted. No lease ends before its
-- holder can have renewed it: the last renewal may be missing, and this server's
-- clock is another one. (The lease of a bind:ttl lock is not renewed; one that would
-- end about now gets a minute, for the clock.) A lease that somebody has locked is
-- being renewed, or it has to do without: all locks of all pods wait for this. Then
-- tokens jump, for a few that were granted may not have reached this server: far
-- beyond what can be granted meanwhile, and also beyond where another standby that
-- was promoted before may have jumped to. It returns whether there was anything to
-- do. It may do what the sidecar's role may not: set the sequence.
-- +goose StatementBegin
CREATE FUNCTION locksidecar.new_epoch() RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    timeline text := substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8);
    known text;
BEGIN
    SELECT epoch INTO known FROM locksidecar.meta FOR UPDATE;
    IF known = timeline THEN
        RETURN false;
    END IF;
    WITH due AS (
        SELECT id FROM locksidecar.leases
        WHERE renewed OR expires_at BETWEEN clock_timestamp() - interval '1 minute' AND clock_timestamp() + interval '1 minute'
        ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
    )
    UPDATE locksidecar.leases l
    SET expires_at = greatest(expires_at,
        clock_timestamp() + CASE WHEN renewed THEN ttl ELSE least(ttl, interval '1 minute') END)
    FROM due WHERE l.id = due.id;
    UPDATE locksidecar.meta SET epoch = timeline;
    -- Last, for a rollback does not take it back. 2^20 for each second since 2020: no
    -- server grants a million locks a second, and 2^53, the last number that readers
    -- of JSON know exactly, is 270 years away.
    PERFORM setval('locksidecar.tokens', greatest(
        (SELECT last_value FROM locksidecar.tokens) + (1 << 30),
        floor(extract(epoch FROM clock_timestamp() - timestamptz '2020-01-01 00:00:00Z'))::bigint << 20));
    RETURN true;
END
$$;
-- +goose StatementEnd

-- in_time is true, or fails with LS002 when a statement comes so late that its
-- sidecar has given it up: it lay in a buffer. (Invariant 7: what was undone must
-- not come after.)
-- +goose StatementBegin
CREATE FUNCTION locksidecar.in_time(not_after timestamptz) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    IF clock_timestamp() < not_after THEN
        RETURN true;
    END IF;
    RAISE EXCEPTION 'the statement came too late' USING ERRCODE = 'LS002';
END
$$;
-- +goose StatementEnd

-- lock_key locks the row of a key and makes it, free, if there is none. An
-- insertion of the same key that is still under way is waited for.
-- +goose StatementBegin
CREATE FUNCTION locksidecar.lock_key(ns text, k text) RETURNS locksidecar.locks
LANGUAGE plpgsql AS $$
DECLARE
    l locksidecar.locks;
BEGIN
    LOOP
        SELECT * INTO l FROM locksidecar.locks WHERE namespace = ns AND key = k FOR UPDATE;
        IF FOUND THEN
            RETURN l;
        END IF;
        INSERT INTO locksidecar.locks (namespace, key, token, freed_at)
        VALUES (ns, k, nextval('locksidecar.tokens'), clock_timestamp())
        ON CONFLICT DO NOTHING;
    END LOOP;
END
$$;
-- +goose StatementEnd

-- give grants a key, whose row the caller has locked, to who asked for it. (An
-- ask is a waiter that need not wait.) The token is drawn here, after the row is
-- locked: tokens of a key grow in the order of its grants (invariant 2).
-- +goose StatementBegin
CREATE FUNCTION locksidecar.give(
    w locksidecar.waiters, its_instance text, its_pod text,
    OUT token bigint, OUT acquired_at timestamptz)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    rides_on uuid := w.lease_id;
BEGIN
    IF w.ttl IS NOT NULL THEN
        rides_on := gen_random_uuid();
        INSERT INTO locksidecar.leases (id, instance, pod, renewed, ttl, expires_at)
        VALUES (rides_on, its_instance, its_pod, false, w.ttl, clock_timestamp() + w.ttl);
    END IF;
    UPDATE locksidecar.locks l
    SET lease_id = rides_on, token = nextval('locksidecar.tokens'), grant_id = w.grant_id,
        contended = EXISTS (SELECT FROM locksidecar.waiters q WHERE q.namespace = w.namespace AND q.key = w.key),
        stopping = NULL, session = w.session, owner = w.owner, acquired_at = clock_timestamp(),
        data = w.data, traceparent = w.traceparent, freed_at = NULL
    WHERE l.namespace = w.namespace AND l.key = w.key
    RETURNING l.token, l.acquired_at INTO give.token, give.acquired_at;
END
$$;
-- +goose StatementEnd

-- ask grants keys that are free or whose holder's lease is dead, in the order of
-- the keys. For one that is held it says so, or with may_wait stands in line.
-- States: granted, queued, held, lost (the asker's lease does not live), and dead:
-- the holder's lease has expired, or is dead and left waiters behind. It must be
-- buried, in a transaction of its own, and the ask be repeated.
--
-- A waiter is inserted while its holder's lease is locked FOR KEY SHARE: a burial
-- either waits and then sees the waiter, or was before and is seen here. Without
-- it the burial would run in between and forget the waiter (invariant 5).
-- +goose StatementBegin
CREATE FUNCTION locksidecar.ask(
    ns text, not_after timestamptz, may_wait boolean, its_instance text, its_pod text,
    keys text[], grants uuid[], leases uuid[], ttls interval[],
    sessions text[], owners text[], datas text[], traceparents text[])
RETURNS TABLE (
    ord integer, state text, dead uuid, place integer, token bigint, acquired_at timestamptz,
    expires_at timestamptz, now timestamptz, lease_id uuid, instance text, pod text, renewed boolean,
    session text, owner text, data text, traceparent text, waiting integer)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    a record;
    w locksidecar.waiters;
    l locksidecar.locks;
    h locksidecar.leases;
BEGIN
    PERFORM locksidecar.in_epoch();
    FOR a IN
        SELECT * FROM unnest(keys, grants, leases, ttls, sessions, owners, datas, traceparents) WITH ORDINALITY
            AS u (key, grant_id, lease_id, ttl, session, owner, data, traceparent, ord)
        ORDER BY u.key COLLATE "C"
    LOOP
        ask.ord := a.ord; ask.dead := NULL; ask.place := NULL; ask.waiting := 0;
        w.namespace := ns; w.key := a.key; w.grant_id := a.grant_id; w.lease_id := a.lease_id;
        w.ttl := NULLIF(a.ttl, interval '0');
        w.session := a.session; w.owner := a.owner; w.data := a.data; w.traceparent := a.traceparent;

        l := locksidecar.lock_key(ns, w.key);
        PERFORM locksidecar.in_time(not_after);
        IF may_wait OR w.ttl IS NULL THEN
            SELECT s.expires_at INTO ask.expires_at FROM locksidecar.leases s
            WHERE s.id = w.lease_id AND s.expires_at > clock_timestamp();
            IF NOT FOUND THEN
                ask.state := 'lost';
                RETURN NEXT;
                CONTINUE;
            END IF;
        END IF;

        h := NULL;
        IF l.lease_id IS NOT NULL THEN
            SELECT * INTO h FROM locksidecar.leases s WHERE s.id = l.lease_id FOR KEY SHARE;
        END IF;
        ask.now := clock_timestamp();

        IF l.lease_id IS NULL OR (h.id IS NULL AND NOT (l.contended AND EXISTS (
            SELECT FROM locksidecar.waiters q WHERE q.namespace = ns AND q.key = w.key)))
        THEN
            ask.state := 'granted';
            SELECT g.token, g.acquired_at INTO ask.token, ask.acquired_at
            FROM locksidecar.give(w, its_instance, its_pod) g;
            IF w.ttl IS NOT NULL THEN
                ask.expires_at := ask.now + w.ttl;
            END IF;
        ELSIF h.id IS NULL OR h.expires_at <= ask.now THEN
            ask.state := 'dead';
            ask.dead := l.lease_id;
        ELSIF l.grant_id = w.grant_id THEN -- a repeat
            -- A bind:ttl lock that another instance was granted: either may tell
            -- somebody of it, so none must give it back because it could not.
            IF NOT h.renewed AND h.instance <> its_instance THEN
                UPDATE locksidecar.leases SET repeated = true WHERE id = h.id;
            END IF;
            ask.state := 'granted';
            ask.token := l.token; ask.acquired_at := l.acquired_at; ask.expires_at := h.expires_at;
        ELSE
            ask.state := 'held';
            IF may_wait THEN
                ask.state := 'queued';
                ask.place := locksidecar.stand_in_line(l, w);
            END IF;
            SELECT count(*) INTO ask.waiting FROM locksidecar.waiters q WHERE q.namespace = ns AND q.key = w.key;
            ask.token := l.token; ask.acquired_at := l.acquired_at; ask.expires_at := h.expires_at;
            ask.lease_id := h.id; ask.instance := h.instance; ask.pod := h.pod; ask.renewed := h.renewed;
            ask.session := l.session; ask.owner := l.owner; ask.data := l.data; ask.traceparent := l.traceparent;
        END IF;
        RETURN NEXT;
    END LOOP;
END
$$;
-- +goose StatementEnd

-- stand_in_line makes a waiter of an ask, unless it is one already, and returns
-- its place. The caller has locked the lock row. A waiter that comes again under
-- another lease has lost its place.
-- +goose StatementBegin
CREATE FUNCTION locksidecar.stand_in_line(l locksidecar.locks, w locksidecar.waiters) RETURNS integer
LANGUAGE plpgsql AS $$
BEGIN
    IF NOT l.contended THEN
        UPDATE locksidecar.locks SET contended = true WHERE namespace = l.namespace AND key = l.key;
    END IF;
    DELETE FROM locksidecar.waiters
    WHERE namespace = w.namespace AND grant_id = w.grant_id AND lease_id <> w.lease_id;
    INSERT INTO locksidecar.waiters
        (grant_id, namespace, key, lease_id, ttl, session, owner, data, traceparent)
    VALUES (w.grant_id, w.namespace, w.key, w.lease_id, w.ttl, w.session, w.owner, w.data, w.traceparent)
    ON CONFLICT (namespace, grant_id) DO NOTHING;
    RETURN (
        SELECT count(*) FROM locksidecar.waiters q
        WHERE q.namespace = w.namespace AND q.key = w.key
        AND q.id <= (SELECT id FROM locksidecar.waiters WHERE namespace = w.namespace AND grant_id = w.grant_id));
END
$$;
-- +goose StatementEnd

-- hand_off ends the grant of a key that is held by from_lease (under from_token,
-- unless that is null) and gives the key to the first living waiter; it frees the
-- key only when no waiter remains (invariant 5). Outcomes: granted, freed, other
-- (somebody else has it, nothing changed), and expired: only waiters with expired
-- leases remain. Expired is not dead, they may be renewing in this moment: they
-- must be buried in transactions of their own, and hand_off be called again.
-- "expired" names their leases, and after a grant those that were passed over.
-- Whoever is first in line afterwards is to be told (then_grant, then_instance) when
-- the new holder's lease may end before the old one's would have: it looks again when
-- that one ends. Leases of the same TTL are renewed too often for that.
-- +goose StatementBegin
CREATE FUNCTION locksidecar.hand_off(
    ns text, k text, from_lease uuid, from_token bigint,
    OUT outcome text, OUT expired uuid[], OUT grant_id uuid, OUT lease_id uuid, OUT instance text,
    OUT token bigint, OUT acquired_at timestamptz, OUT expires_at timestamptz,
    OUT then_grant uuid, OUT then_instance text)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    l locksidecar.locks;
    w locksidecar.waiters;
    s locksidecar.leases;
    held locksidecar.leases;
    alive boolean;
BEGIN
    SELECT * INTO l FROM locksidecar.locks WHERE namespace = ns AND key = k FOR UPDATE;
    IF NOT FOUND OR l.lease_id IS DISTINCT FROM from_lease OR l.token <> from_token THEN
        outcome := 'other';
        RETURN;
    END IF;

    LOOP
        SELECT q.* INTO w FROM locksidecar.waiters q JOIN locksidecar.leases o ON o.id = q.lease_id
        WHERE q.namespace = ns AND q.key = k AND o.expires_at > clock_timestamp()
        ORDER BY q.id LIMIT 1;
        EXIT WHEN NOT FOUND;
        -- From here on it cannot be buried.
        SELECT o.* INTO s FROM locksidecar.leases o
        WHERE o.id = w.lease_id AND o.expires_at > clock_timestamp() FOR KEY SHARE;
        CONTINUE WHEN NOT FOUND;
        DELETE FROM locksidecar.waiters q WHERE q.id = w.id;
        CONTINUE WHEN NOT FOUND; -- it cancelled
        SELECT array_agg(DISTINCT q.lease_id) INTO expired FROM locksidecar.waiters q
        WHERE q.namespace = ns AND q.key = k AND q.id < w.id;

        SELECT * INTO held FROM locksidecar.leases o WHERE o.id = from_lease;
        IF held.id IS NULL OR coalesce(w.ttl, s.ttl) < held.ttl THEN
            SELECT q.grant_id, o.instance INTO hand_off.then_grant, hand_off.then_instance
            FROM locksidecar.waiters q JOIN locksidecar.leases o ON o.id = q.lease_id
            WHERE q.namespace = ns AND q.key = k AND o.expires_at > clock_timestamp()
            ORDER BY q.id LIMIT 1;
        END IF;
        DELETE FROM locksidecar.leases o WHERE o.id = from_lease AND NOT o.renewed;
        SELECT g.token, g.acquired_at INTO hand_off.token, hand_off.acquired_at
        FROM locksidecar.give(w, s.instance, s.pod) g;
        outcome := 'granted'; hand_off.grant_id := w.grant_id; hand_off.lease_id := w.lease_id;
        hand_off.instance := s.instance;
        hand_off.expires_at := CASE WHEN w.ttl IS NULL THEN s.expires_at ELSE hand_off.acquired_at + w.ttl END;
        RETURN;
    END LOOP;

    DELETE FROM locksidecar.waiters q WHERE q.namespace = ns AND q.key = k
    AND NOT EXISTS (SELECT FROM locksidecar.leases o WHERE o.id = q.lease_id);
    SELECT array_agg(DISTINCT q.lease_id) INTO expired FROM locksidecar.waiters q WHERE q.namespace = ns AND q.key = k;
    IF expired IS NOT NULL THEN
        outcome := 'expired';
        RETURN;
    END IF;

    outcome := 'freed';
    alive := EXISTS (SELECT FROM locksidecar.leases o WHERE o.id = from_lease AND o.expires_at > clock_timestamp());
    UPDATE locksidecar.locks
    SET lease_id = NULL, grant_id = CASE WHEN alive THEN NULL ELSE l.grant_id END,
        contended = false, stopping = NULL, freed_at = clock_timestamp()
    WHERE namespace = ns AND key = k;
    DELETE FROM locksidecar.leases o WHERE o.id = from_lease AND NOT o.renewed;
END
$$;
-- +goose StatementEnd

-- hand_off_keys hands off several keys.
-- +goose StatementBegin
CREATE FUNCTION locksidecar.hand_off_keys(namespaces text[], keys text[], leases uuid[], tokens bigint[])
RETURNS TABLE (
    namespace text, key text, outcome text, expired uuid[], grant_id uuid, lease_id uuid, instance text,
    token bigint, acquired_at timestamptz, expires_at timestamptz, then_grant uuid, then_instance text, now timestamptz)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    a record;
BEGIN
    PERFORM locksidecar.in_epoch();
    FOR a IN
        SELECT * FROM unnest(namespaces, keys, leases, tokens) AS u (namespace, key, lease_id, token)
        ORDER BY u.namespace COLLATE "C", u.key COLLATE "C"
    LOOP
        RETURN QUERY SELECT a.namespace, a.key, h.*, clock_timestamp()
        FROM locksidecar.hand_off(a.namespace, a.key, a.lease_id, a.token) h;
    END LOOP;
END
$$;
-- +goose StatementEnd

-- judge says how a claim on a lock stands: holds, other (session), released,
-- expired or unknown. A session's lock is claimed by its lease; for the lock of
-- an unrenewed lease (bind:ttl) the token is enough.
CREATE FUNCTION locksidecar.judge(
    claimed_token bigint, claimed_lease uuid, l locksidecar.locks, s locksidecar.leases) RETURNS text
LANGUAGE sql AS $$
    SELECT CASE
        WHEN l.token IS DISTINCT FROM claimed_token OR l.acquired_at IS NULL THEN 'unknown'
        WHEN l.lease_id IS NULL AND l.grant_id IS NULL THEN 'released'
        WHEN l.lease_id IS NULL OR s.id IS NULL THEN 'expired'
        WHEN s.renewed AND s.id IS DISTINCT FROM claimed_lease THEN 'other'
        WHEN s.expires_at <= clock_timestamp() THEN 'expired'
        ELSE 'holds'
    END
$$;

-- release frees locks, and hands off the contended ones, one after the other in the
-- order of the keys. It is for what a plain UPDATE did not take. An untold grant is
-- left alone when another instance was granted it again: see ask. A lock whose lease
-- has expired but is not dead is given up too: if a late renewal were under way, the
-- lock would otherwise stay.
-- +goose StatementBegin
CREATE FUNCTION locksidecar.release(
    ns text, its_instance text, keys text[], tokens bigint[], leases uuid[], untold boolean[])
RETURNS TABLE (
    ord integer, state text, token bigint, acquired_at timestamptz, expires_at timestamptz, now timestamptz,
    lease_id uuid, instance text, pod text, renewed boolean,
    session text, owner text, data text, traceparent text, waiting integer,
    -- what became of one that was handed off: see hand_off
    outcome text, expired uuid[], next_grant uuid, next_lease uuid, next_instance text,
    next_token bigint, next_acquired_at timestamptz, next_expires_at timestamptz,
    then_grant uuid, then_instance text)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    c record;
    l locksidecar.locks;
    s locksidecar.leases;
    h record;
BEGIN
    PERFORM locksidecar.in_epoch();
    FOR c IN
        SELECT * FROM unnest(keys, tokens, leases, untold) WITH ORDINALITY AS u (key, token, lease_id, untold, ord)
        ORDER BY u.key COLLATE "C"
    LOOP
        release.ord := c.ord; release.waiting := 0; release.outcome := NULL; release.expired := NULL;
        release.then_grant := NULL; release.then_instance := NULL;
        SELECT * INTO l FROM locksidecar.locks WHERE namespace = ns AND key = c.key FOR UPDATE;
        SELECT * INTO s FROM locksidecar.leases WHERE id = l.lease_id;
        release.state := locksidecar.judge(c.token, c.lease_id, l, s);
        IF c.untold AND release.state = 'holds' AND (s.repeated OR s.instance <> its_instance) THEN
            release.state := 'other'; -- it may have been told elsewhere
        END IF;
        -- An older token: a release whose answer was lost may be repeated here, and with
        -- it the news of its hand-off.
        IF release.state = 'unknown' AND c.token < l.token AND s.id IS NOT NULL THEN
            release.then_grant := l.grant_id; release.then_instance := s.instance;
        END IF;
        release.token := l.token; release.acquired_at := l.acquired_at; release.expires_at := s.expires_at;
        release.now := clock_timestamp(); release.lease_id := l.lease_id;
        release.instance := s.instance; release.pod := s.pod; release.renewed := s.renewed;
        release.session := l.session; release.owner := l.owner;
        release.data := l.data; release.traceparent := l.traceparent;
        IF release.state IN ('holds', 'expired') AND (s.id IS NOT NULL OR l.contended) THEN
            SELECT count(*) INTO release.waiting FROM locksidecar.waiters q WHERE q.namespace = ns AND q.key = c.key;
            SELECT * INTO h FROM locksidecar.hand_off(ns, c.key, l.lease_id, l.token);
            release.outcome := h.outcome; release.expired := h.expired;
            release.next_grant := h.grant_id; release.next_lease := h.lease_id; release.next_instance := h.instance;
            release.next_token := h.token; release.next_acquired_at := h.acquired_at;
            release.next_expires_at := h.expires_at;
            release.then_grant := h.then_grant; release.then_instance := h.then_instance;
        END IF;
        RETURN NEXT;
    END LOOP;
END
$$;
-- +goose StatementEnd

-- amend checks claims, and changes what the lock carries: its data, and for the
-- lock of an unrenewed lease its remaining time. States: see judge.
-- +goose StatementBegin
CREATE FUNCTION locksidecar.amend(
    ns text, not_after timestamptz, keys text[], tokens bigint[], leases uuid[], ttls interval[], set_datas boolean[], datas text[])
RETURNS TABLE (
    ord integer, state text, token bigint, acquired_at timestamptz, expires_at timestamptz, now timestamptz,
    lease_id uuid, instance text, pod text, renewed boolean,
    session text, owner text, data text, traceparent text, waiting integer,
    -- who is first in line behind a lock whose remaining time was set
    next_grant uuid, next_instance text)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    c record;
    l locksidecar.locks;
    s locksidecar.leases;
BEGIN
    FOR c IN
        SELECT * FROM unnest(keys, tokens, leases, ttls, set_datas, datas) WITH ORDINALITY
            AS u (key, token, lease_id, ttl, set_data, data, ord)
        ORDER BY u.key COLLATE "C"
    LOOP
        IF c.set_data OR c.ttl > interval '0' THEN
            SELECT * INTO l FROM locksidecar.locks WHERE namespace = ns AND key = c.key FOR UPDATE;
            PERFORM locksidecar.in_time(not_after);
        ELSE -- only a check: nothing is to be locked, so nothing is to be flushed
            SELECT * INTO l FROM locksidecar.locks WHERE namespace = ns AND key = c.key;
        END IF;
        SELECT * INTO s FROM locksidecar.leases WHERE id = l.lease_id;
        amend.state := locksidecar.judge(c.token, c.lease_id, l, s);
        amend.next_grant := NULL; amend.next_instance := NULL;

        IF amend.state = 'holds' AND c.ttl > interval '0' AND NOT s.renewed THEN
            UPDATE locksidecar.leases
            SET ttl = c.ttl, expires_at = clock_timestamp() + c.ttl
            WHERE id = s.id AND expires_at > clock_timestamp()
            RETURNING * INTO s;
            IF NOT FOUND THEN
                amend.state := 'expired';
            ELSIF l.contended THEN
                SELECT q.grant_id, o.instance INTO amend.next_grant, amend.next_instance
                FROM locksidecar.waiters q JOIN locksidecar.leases o ON o.id = q.lease_id
                WHERE q.namespace = ns AND q.key = c.key AND o.expires_at > clock_timestamp()
                ORDER BY q.id LIMIT 1;
            END IF;
        END IF;
        IF amend.state = 'holds' AND c.set_data THEN
            UPDATE locksidecar.locks SET data = c.data WHERE namespace = ns AND key = c.key
            RETURNING * INTO l;
        END IF;

        RETURN QUERY
        SELECT c.ord::integer, amend.state, l.token, l.acquired_at, s.expires_at, clock_timestamp(),
            s.id, s.instance, s.pod, s.renewed, l.session, l.owner, l.data, l.traceparent,
            (SELECT count(*)::integer FROM locksidecar.waiters q WHERE q.namespace = ns AND q.key = c.key),
            amend.next_grant, amend.next_instance;
    END LOOP;
END
$$;
-- +goose StatementEnd

-- undo frees what attempts of unknown outcome hold, and takes them out of the
-- queues. lock_key waits for an attempt that is still under way (invariant 7). A
-- bind:ttl lock that another instance was granted, too, is left: see ask; and so is a
-- place in line that another instance keeps.
-- +goose StatementBegin
CREATE FUNCTION locksidecar.undo(
    ns text, not_after timestamptz, its_instance text, keys text[], grants uuid[])
RETURNS TABLE (
    namespace text, key text, outcome text, expired uuid[], grant_id uuid, lease_id uuid, instance text,
    token bigint, acquired_at timestamptz, expires_at timestamptz, then_grant uuid, then_instance text, now timestamptz)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    a record;
    l locksidecar.locks;
BEGIN
    PERFORM locksidecar.in_epoch();
    FOR a IN
        SELECT * FROM unnest(keys, grants) AS u (key, grant_id) ORDER BY u.key COLLATE "C"
    LOOP
        l := locksidecar.lock_key(ns, a.key);
        PERFORM locksidecar.in_time(not_after);
        DELETE FROM locksidecar.waiters w WHERE w.namespace = ns AND w.grant_id = a.grant_id
        AND NOT EXISTS (SELECT FROM locksidecar.leases s WHERE s.id = w.lease_id AND s.instance <> its_instance);
        IF l.grant_id = a.grant_id AND l.lease_id IS NOT NULL AND NOT EXISTS (
            SELECT FROM locksidecar.leases s
            WHERE s.id = l.lease_id AND NOT s.renewed AND (s.repeated OR s.instance <> its_instance))
        THEN
            RETURN QUERY SELECT ns, a.key, h.*, clock_timestamp()
            FROM locksidecar.hand_off(ns, a.key, l.lease_id, l.token) h;
        END IF;
    END LOOP;
END
$$;
-- +goose StatementEnd

UPDATE locksidecar.meta SET schema_version = 2, oldest_version = 2;
