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
-- while it has the first (cancel, bury, renew), so functions may lock waiters and
-- leases in any order behind their lock rows.

-- +goose Up

-- in_epoch is true, or fails with LS001 when the server is another one than that
-- which granted last, or these tables are: a standby was promoted, or a backup restored, and
-- what they know may be older than what was told. Then new_epoch comes first. Statements that grant, and those that
-- bury expired leases, ask it.
-- +goose StatementBegin
CREATE FUNCTION locksidecar.in_epoch() RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    IF (SELECT epoch = locksidecar.here(source, mark) FROM locksidecar.meta) THEN
        RETURN true;
    END IF;
    RAISE EXCEPTION 'the server was promoted, or restored, since it last granted a lock' USING ERRCODE = 'LS001';
END
$$;
-- +goose StatementEnd

-- history names what this server grants, once it may grant; or it fails as in_epoch does.
-- +goose StatementBegin
CREATE FUNCTION locksidecar.history() RETURNS uuid
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM locksidecar.in_epoch();
    RETURN (SELECT m.history FROM locksidecar.meta m);
END
$$;
-- +goose StatementEnd

-- new_epoch begins to grant on a server that was promoted, or restored. No lease ends before its
-- holder can have renewed it: the last renewal may be missing, and this server's
-- clock is another one. (The lease of a bind:ttl lock is not renewed; one that would
-- end about now gets a minute, for the clock.) A lease that somebody has locked is
-- being renewed, or it has to do without: all locks of all pods wait for this. One that
-- stands has no holder who could be wrong about it. Then
-- tokens jump, for a few that were granted may not have reached this server: far
-- beyond what can be granted meanwhile, and also beyond where another standby that
-- was promoted before may have jumped to. It returns whether there was anything to
-- do, and fails with LS004 where a later copy of the database was seen: see outdate. It may do what
-- the sidecar's role may not: set the sequence.
-- +goose StatementBegin
CREATE FUNCTION locksidecar.new_epoch() RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    here text;
    known text;
    since timestamptz;
    later boolean;
    first bigint;
BEGIN
    SELECT epoch, locksidecar.here(source, mark), began, outdated INTO known, here, since, later
    FROM locksidecar.meta FOR UPDATE;
    IF NOT FOUND THEN -- else each statement would come here, and tokens jump each time
        RAISE EXCEPTION 'the table locksidecar.meta is empty; it must have one row';
    END IF;
    IF later THEN
        RAISE EXCEPTION 'the server is an old primary: a sidecar has seen a later one' USING ERRCODE = 'LS004';
    END IF;
    IF known = here THEN
        RETURN false;
    END IF;
    WITH due AS (
        SELECT id FROM locksidecar.leases
        WHERE NOT standing AND (renewed
            OR expires_at BETWEEN clock_timestamp() - interval '1 minute' AND clock_timestamp() + interval '1 minute')
        ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
    )
    UPDATE locksidecar.leases l
    SET expires_at = greatest(expires_at,
        clock_timestamp() + CASE WHEN renewed THEN ttl ELSE least(ttl, interval '1 minute') END)
    FROM due WHERE l.id = due.id;
    -- 2^20 for each second since 2020: no server grants a million locks a second, and 2^53, the
    -- last number that readers of JSON know exactly, is 270 years away. Soon after another jump
    -- tokens are ahead of that clock, so that two standbys that know nothing of each other would jump to the
    -- same; but they are not promoted in the same moment of this history.
    first := greatest(
        (SELECT last_value FROM locksidecar.tokens) + (1 << 30)
            + floor(extract(epoch FROM greatest(clock_timestamp() - since, interval '0')) * (1 << 20))::bigint,
        floor(extract(epoch FROM clock_timestamp() - timestamptz '2020-01-01 00:00:00Z'))::bigint << 20);
    UPDATE locksidecar.meta
    SET epoch = here, history = gen_random_uuid(), began = clock_timestamp(), began_token = first;
    PERFORM setval('locksidecar.tokens', first); -- last, for a rollback does not take it back
    RETURN true;
END
$$;
-- +goose StatementEnd

-- restored begins a new epoch, for an operator who has put an older copy of the server's
-- files in its place, for nothing here shows that; or who lets a primary that was left serve
-- again. It returns a token that is greater than all
-- that were granted; later ones are greater still. Sidecars' roles may not write meta.
-- +goose StatementBegin
CREATE FUNCTION locksidecar.restored() RETURNS bigint
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE locksidecar.meta SET one = true, outdated = false; -- which gives it another mark
    PERFORM locksidecar.new_epoch();
    RETURN nextval('locksidecar.tokens');
END
$$;
-- +goose StatementEnd

-- outdate is for who has seen a later copy of this database than this one, whose epoch began
-- with the token known: nothing is granted here any more, neither to those who know of no
-- other, until restored. It may do what the sidecar's role may not: write meta.
-- +goose StatementBegin
CREATE FUNCTION locksidecar.outdate(known bigint, later bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE locksidecar.meta SET outdated = true, epoch = ''
    WHERE NOT outdated AND began_token = known AND known < later;
END
$$;
-- +goose StatementEnd

-- use_epoch_source changes by what servers are told from each other, for an operator: 'timeline',
-- 'server' or 'none'. It begins a new epoch, and fails where the server does not answer that.
-- Sidecars' roles may not write meta.
-- +goose StatementBegin
CREATE FUNCTION locksidecar.use_epoch_source(named text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE locksidecar.meta SET source = named;
    PERFORM locksidecar.new_epoch();
END
$$;
-- +goose StatementEnd

-- replicated is true, and makes the statement's end wait for a synchronous standby, where
-- there is one, although it only reads: for all that was committed before (invariant 4). A
-- grant is there for all to see when nobody has confirmed it, once somebody has cancelled
-- the wait for that; and on a server that was cut off from its standby, which may be the
-- primary by now, it must not be told. A message in the log of which nobody hears makes
-- the transaction one that writes.
-- +goose StatementBegin
CREATE FUNCTION locksidecar.replicated() RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('synchronous_standby_names') <> '' THEN
        PERFORM pg_logical_emit_message(true, 'locksidecar', '');
    END IF;
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

-- may_take is true, or fails with LS003 when a sidecar was built for an older schema than
-- one that may take locks here. It may go on to renew and to release what it has.
-- +goose StatementBegin
CREATE FUNCTION locksidecar.may_take(built_for integer) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    IF (SELECT oldest_version FROM locksidecar.meta) <= built_for THEN
        RETURN true;
    END IF;
    RAISE EXCEPTION 'the sidecar is too old for the schema' USING ERRCODE = 'LS003';
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

-- first_in_line returns the first living waiters of a key: those who are told to look.
CREATE FUNCTION locksidecar.first_in_line(
    ns text, k text, most integer, OUT hints uuid[], OUT hint_instances text[])
LANGUAGE sql STABLE AS $$
    SELECT array_agg(f.grant_id ORDER BY f.id), array_agg(f.instance ORDER BY f.id)
    FROM (
        SELECT q.id, q.grant_id, o.instance
        FROM locksidecar.waiters q JOIN locksidecar.leases o ON o.id = q.lease_id
        WHERE q.namespace = ns AND q.key = k AND q.outcome IS NULL
        AND q.id > (SELECT served FROM locksidecar.locks WHERE namespace = ns AND key = k)
        AND o.expires_at > clock_timestamp() AND NOT o.standing
        ORDER BY q.id LIMIT most
    ) f
$$;

-- give grants a key, whose row the caller has locked, to who asked for it. (An
-- ask is a waiter that need not wait.) The token is drawn here, after the row is
-- locked: tokens of a key grow in the order of its grants (invariant 2). expires_at
-- is null when the lease on which the lock rides stayed as it was.
--
-- by_release is the trace context of the release that hands the key over, empty if none
-- does. w.id is null unless all waiters before this one are gone.
--
-- With a min_hold, that lease lives at least until the hold is over. It is used for
-- this lock alone, and the caller has locked it: nobody has buried it.
-- +goose StatementBegin
CREATE FUNCTION locksidecar.give(
    w locksidecar.waiters, its_instance text, its_pod text, by_release text,
    OUT token bigint, OUT acquired_at timestamptz, OUT expires_at timestamptz)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    rides_on uuid := w.lease_id;
BEGIN
    give.acquired_at := clock_timestamp();
    IF w.ttl IS NOT NULL THEN
        rides_on := gen_random_uuid();
        give.expires_at := give.acquired_at + greatest(w.ttl, w.min_hold);
        INSERT INTO locksidecar.leases (id, instance, pod, renewed, ttl, expires_at, hold_until, namespace, key)
        VALUES (rides_on, its_instance, its_pod, false, w.ttl, give.expires_at, give.acquired_at + w.min_hold,
            w.namespace, w.key);
    ELSIF w.min_hold IS NOT NULL THEN
        UPDATE locksidecar.leases s
        SET hold_until = give.acquired_at + w.min_hold,
            expires_at = greatest(s.expires_at, give.acquired_at + w.min_hold),
            namespace = w.namespace, key = w.key
        WHERE s.id = w.lease_id
        RETURNING s.expires_at INTO give.expires_at;
    END IF;
    UPDATE locksidecar.locks l
    SET lease_id = rides_on, token = nextval('locksidecar.tokens'), grant_id = w.grant_id,
        contended = EXISTS (
            SELECT FROM locksidecar.waiters q
            WHERE q.namespace = w.namespace AND q.key = w.key AND q.id > greatest(l.served, w.id) AND q.outcome IS NULL),
        served = greatest(l.served, w.id), stopping = NULL, stop_reason = NULL, session = w.session, owner = w.owner, acquired_at = give.acquired_at,
        data = w.data, traceparent = w.traceparent, handed_by = by_release, freed_at = NULL
    WHERE l.namespace = w.namespace AND l.key = w.key
    RETURNING l.token INTO give.token;
END
$$;
-- +goose StatementEnd

-- ask grants keys that are free or whose holder's lease is dead, in the order of
-- the keys, and of the asks for the same one. For one that is held it says so, or with may_wait stands in line.
-- States: granted, queued, held, lost (the asker's lease does not live), and dead:
-- the holder's lease has expired, or is dead and left waiters behind. It must be
-- buried, in a transaction of its own, and the ask be repeated. A waiter that comes
-- again and was skipped meanwhile hears skipped, with the result. Who takes a dead
-- holder's key tells those who watch it that the grant ended (ended: its token).
--
-- A waiter is inserted while its holder's lease is locked FOR KEY SHARE: a burial
-- either waits and then sees the waiter, or was before and is seen here. Without
-- it the burial would run in between and forget the waiter (invariant 5).
--
-- Where all that came only stands in line, the commit waits neither for the disk nor for a
-- standby: the lock row would be kept from releases for so long. A crash forgets the last
-- commits and none before them, so it can forget these places, and whatever was told besides
-- is there: see doc.go. Any grant waits (invariant 4), also one that is found again, and so
-- does a place that moves: whose it was cancels no more, and writes nothing when it finds that out.
-- +goose StatementBegin
CREATE FUNCTION locksidecar.ask(
    ns text, not_after timestamptz, may_wait boolean, its_instance text, its_pod text,
    keys text[], grants uuid[], leases uuid[], ttls interval[], min_holds interval[], skips boolean[],
    sessions text[], owners text[], datas text[], traceparents text[])
RETURNS TABLE (
    ord integer, state text, dead uuid, place integer, result text, watched boolean, ended bigint,
    token bigint, acquired_at timestamptz, expires_at timestamptz, now timestamptz,
    lease_id uuid, instance text, pod text, renewed boolean, standing boolean,
    session text, owner text, data text, traceparent text,
    stopping timestamptz, stop_reason text, grant_id uuid, waiting integer,
    handed_by text) -- of a grant that is found again
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    a record;
    w locksidecar.waiters;
    l locksidecar.locks;
    h locksidecar.leases;
    counted text; -- the key whose line was counted; line is how many stand there
    line integer;
    p record;
    queued integer := 0; -- how many stand in line who did not elsewhere
BEGIN
    PERFORM locksidecar.in_epoch();
    FOR a IN
        SELECT * FROM unnest(keys, grants, leases, ttls, min_holds, skips, sessions, owners, datas, traceparents)
            WITH ORDINALITY AS u (key, grant_id, lease_id, ttl, min_hold, skip, session, owner, data, traceparent, ord)
        ORDER BY u.key COLLATE "C", u.ord
    LOOP
        ask.ord := a.ord; ask.dead := NULL; ask.place := NULL; ask.ended := NULL; ask.waiting := 0;
        ask.handed_by := '';
        w.namespace := ns; w.key := a.key; w.grant_id := a.grant_id; w.lease_id := a.lease_id;
        w.ttl := NULLIF(a.ttl, interval '0'); w.min_hold := NULLIF(a.min_hold, interval '0'); w.skip := a.skip;
        w.session := a.session; w.owner := a.owner; w.data := a.data; w.traceparent := a.traceparent;

        l := locksidecar.lock_key(ns, w.key);
        PERFORM locksidecar.in_time(not_after);
        ask.watched := l.watched;
        h := NULL;
        IF l.lease_id IS NOT NULL THEN
            SELECT * INTO h FROM locksidecar.leases s WHERE s.id = l.lease_id FOR KEY SHARE;
        END IF;
        ask.now := clock_timestamp();

        -- A repeat finds its grant, whatever became of the lease by which it would wait:
        -- a bind:ttl lock rides on another one.
        IF l.grant_id = w.grant_id AND h.expires_at > ask.now AND NOT h.standing THEN
            -- A bind:ttl lock that another instance was granted: either may tell
            -- somebody of it, so none must give it back because it could not.
            IF NOT h.renewed AND h.instance <> its_instance THEN
                UPDATE locksidecar.leases SET repeated = true WHERE id = h.id;
            END IF;
            ask.state := 'granted'; ask.watched := false; -- it was told
            ask.token := l.token; ask.acquired_at := l.acquired_at; ask.expires_at := h.expires_at;
            ask.handed_by := l.handed_by;
            RETURN NEXT;
            CONTINUE;
        END IF;
        IF may_wait THEN
            SELECT q.result INTO ask.result FROM locksidecar.waiters q JOIN locksidecar.leases o ON o.id = q.lease_id
            WHERE q.namespace = ns AND q.grant_id = w.grant_id AND q.outcome IS NOT NULL;
            IF FOUND THEN
                ask.state := 'skipped';
                RETURN NEXT;
                CONTINUE;
            END IF;
        END IF;
        IF may_wait OR w.ttl IS NULL THEN
            IF w.min_hold IS NOT NULL THEN -- from here on it cannot be buried: see give
                PERFORM FROM locksidecar.leases s WHERE s.id = w.lease_id FOR KEY SHARE;
            END IF;
            SELECT s.expires_at INTO ask.expires_at FROM locksidecar.leases s
            WHERE s.id = w.lease_id AND s.expires_at > clock_timestamp() AND NOT s.standing;
            IF NOT FOUND THEN
                ask.state := 'lost';
                RETURN NEXT;
                CONTINUE;
            END IF;
        END IF;

        IF l.lease_id IS NULL OR (h.id IS NULL AND NOT (l.contended AND EXISTS (
            SELECT FROM locksidecar.waiters q
            WHERE q.namespace = ns AND q.key = w.key AND q.id > l.served AND q.outcome IS NULL)))
        THEN
            ask.state := 'granted';
            IF l.lease_id IS NOT NULL AND l.grant_id IS NOT NULL THEN
                ask.ended := l.token;
            END IF;
            SELECT g.token, g.acquired_at, coalesce(g.expires_at, ask.expires_at)
            INTO ask.token, ask.acquired_at, ask.expires_at
            FROM locksidecar.give(w, its_instance, its_pod, '') g;
            ask.now := clock_timestamp();
        ELSIF h.id IS NULL OR h.expires_at <= ask.now THEN
            ask.state := 'dead';
            ask.dead := l.lease_id;
        ELSE
            ask.state := 'held';
            IF counted IS DISTINCT FROM a.key THEN -- once for all who come together: a line may be long
                counted := a.key;
                SELECT count(*) INTO line FROM locksidecar.waiters q
                WHERE q.namespace = ns AND q.key = w.key AND q.id > l.served AND q.outcome IS NULL;
            END IF;
            IF may_wait THEN
                p := locksidecar.stand_in_line(l, w, line);
                ask.state := 'queued'; ask.place := p.place;
                IF NOT p.moved THEN
                    queued := queued + 1;
                END IF;
                line := greatest(line, ask.place);
            END IF;
            ask.waiting := line;
            ask.token := l.token; ask.acquired_at := l.acquired_at; ask.expires_at := h.expires_at;
            ask.lease_id := h.id; ask.instance := h.instance; ask.pod := h.pod; ask.renewed := h.renewed;
            ask.standing := h.standing; ask.stopping := l.stopping; ask.stop_reason := l.stop_reason;
            ask.session := l.session; ask.owner := l.owner; ask.data := l.data; ask.traceparent := l.traceparent;
        END IF;
        RETURN NEXT;
    END LOOP;
    IF queued = cardinality(keys) THEN
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;
END
$$;
-- +goose StatementEnd

-- stand_in_line makes a waiter of an ask, unless it is one already, and returns
-- its place. The caller has locked the lock row, and counted the line. A waiter that comes
-- again under another lease has lost its place: it has moved.
-- +goose StatementBegin
CREATE FUNCTION locksidecar.stand_in_line(
    l locksidecar.locks, w locksidecar.waiters, ahead integer, OUT place integer, OUT moved boolean)
LANGUAGE plpgsql AS $$
DECLARE
    again boolean := false; -- it is there already, or was under another lease
    its_id bigint;
BEGIN
    moved := false;
    IF NOT l.contended THEN
        UPDATE locksidecar.locks SET contended = true WHERE namespace = l.namespace AND key = l.key;
    END IF;
    LOOP
        INSERT INTO locksidecar.waiters
            (grant_id, namespace, key, lease_id, ttl, min_hold, skip, session, owner, data, traceparent)
        VALUES (w.grant_id, w.namespace, w.key, w.lease_id, w.ttl, w.min_hold, w.skip,
            w.session, w.owner, w.data, w.traceparent)
        ON CONFLICT (namespace, grant_id) DO NOTHING RETURNING id INTO its_id;
        IF its_id <= l.served THEN -- somebody has set the sequence of the ids back
            UPDATE locksidecar.locks SET served = 0 WHERE namespace = l.namespace AND key = l.key;
        END IF;
        IF its_id IS NOT NULL AND NOT again THEN
            place := ahead + 1;
            RETURN;
        END IF;
        EXIT WHEN its_id IS NOT NULL;
        again := true;
        SELECT id INTO its_id FROM locksidecar.waiters
        WHERE namespace = w.namespace AND grant_id = w.grant_id AND lease_id = w.lease_id;
        EXIT WHEN FOUND;
        DELETE FROM locksidecar.waiters
        WHERE namespace = w.namespace AND grant_id = w.grant_id AND lease_id <> w.lease_id;
        moved := moved OR FOUND;
    END LOOP;
    place := (
        SELECT count(*) FROM locksidecar.waiters q
        WHERE q.namespace = w.namespace AND q.key = w.key AND q.id > l.served AND q.id <= its_id AND q.outcome IS NULL);
END
$$;
-- +goose StatementEnd

-- end_hold makes the lease of a session's lock one that holds nothing: the lock was given
-- back, or is being broken. It ends as any other does, when it is buried or not renewed.
-- +goose StatementBegin
CREATE FUNCTION locksidecar.end_hold(s locksidecar.leases) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF s.hold_until > clock_timestamp() AND s.renewed AND NOT s.standing THEN
        UPDATE locksidecar.leases o
        SET hold_until = NULL, expires_at = least(o.expires_at, clock_timestamp() + o.ttl)
        WHERE o.id = s.id AND NOT o.standing;
    END IF;
END
$$;
-- +goose StatementEnd

-- end_lease ends the lease, as it was read, of a lock that comes to an end, if nothing else
-- rides on it. A lease without a hold that sidecars renew never gets one, and is left.
-- +goose StatementBegin
CREATE FUNCTION locksidecar.end_lease(s locksidecar.leases) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF s.renewed AND s.hold_until IS NULL THEN
        RETURN;
    END IF;
    DELETE FROM locksidecar.leases o WHERE o.id = s.id AND (NOT o.renewed OR o.standing);
    PERFORM locksidecar.end_hold(s);
END
$$;
-- +goose StatementEnd

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
-- +goose StatementBegin
CREATE FUNCTION locksidecar.pass_on(
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
        AND o.expires_at > clock_timestamp() AND NOT o.standing
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
            FROM locksidecar.first_in_line(l.namespace, l.key, 1) f;
        END IF;
        outcome := 'granted'; pass_on.grant_id := w.grant_id; pass_on.lease_id := w.lease_id;
        pass_on.instance := s.instance;
        IF l.grant_id IS NOT NULL THEN
            ended := l.token;
        END IF;
        RETURN;
    END LOOP;

    DELETE FROM locksidecar.waiters q WHERE q.namespace = l.namespace AND q.key = l.key AND q.id > l.served
    AND NOT EXISTS (SELECT FROM locksidecar.leases o WHERE o.id = q.lease_id AND NOT o.standing);
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
        WHERE o.id = l.lease_id AND o.expires_at > clock_timestamp() AND NOT o.standing);
    UPDATE locksidecar.locks
    SET lease_id = NULL, grant_id = CASE WHEN alive THEN NULL ELSE l.grant_id END,
        contended = false, stopping = NULL, stop_reason = NULL, freed_at = clock_timestamp()
    WHERE namespace = l.namespace AND key = l.key;
    PERFORM locksidecar.end_lease(held);
END
$$;
-- +goose StatementEnd

-- hand_off is pass_on for a key that is held by from_lease (under from_token, unless that
-- is null). Otherwise its outcome is other: somebody else has it, nothing changed.
-- +goose StatementBegin
CREATE FUNCTION locksidecar.hand_off(
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
-- +goose StatementEnd

-- hand_off_keys hands off several keys.
-- +goose StatementBegin
CREATE FUNCTION locksidecar.hand_off_keys(
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
-- +goose StatementEnd

-- judge says how a claim on a lock stands: holds, other (session), released,
-- expired or unknown. A session's lock is claimed by its lease; for the lock of
-- an unrenewed lease (bind:ttl) the token is enough. Nobody claims what a hold keeps. A
-- server that was just promoted calls nothing expired that new_epoch would prolong.
CREATE FUNCTION locksidecar.judge(
    claimed_token bigint, claimed_lease uuid, l locksidecar.locks, s locksidecar.leases) RETURNS text
LANGUAGE sql AS $$
    SELECT CASE
        WHEN l.token IS DISTINCT FROM claimed_token OR l.acquired_at IS NULL THEN 'unknown'
        WHEN l.grant_id IS NULL THEN 'released'
        WHEN l.lease_id IS NULL OR s.id IS NULL OR s.standing THEN 'expired'
        WHEN s.renewed AND s.id IS DISTINCT FROM claimed_lease THEN 'other'
        WHEN s.expires_at <= clock_timestamp() AND locksidecar.in_epoch() THEN 'expired'
        ELSE 'holds'
    END
$$;

-- release frees locks, and hands off the contended ones, one after the other in the
-- order of the keys. It is for what a plain UPDATE did not take. An untold grant is
-- left alone when another instance was granted it again: see ask. A lock whose lease
-- has expired but is not dead is given up too: if a late renewal were under way, the
-- lock would otherwise stay.
--
-- With success, the waiters that asked for it are marked: they are no waiters from
-- here on, and the hand-off passes them over. A lock whose hold is not over is
-- released, but kept (outcome stands), unless that is to be ignored (at_once). Told to
-- look (hints) are those who are marked and, for they were told that the lock may
-- end later, the first in line for what stands. A release whose answer was lost may
-- be repeated, and with it this news, and that of the hand-off.
-- +goose StatementBegin
CREATE FUNCTION locksidecar.release(
    ns text, its_instance text, keys text[], tokens bigint[], leases uuid[], untold boolean[],
    successes boolean[], results text[], at_once boolean[], traceparents text[])
RETURNS TABLE (
    ord integer, state text, token bigint, lease_id uuid, acquired_at timestamptz, traceparent text, now timestamptz,
    -- what became of it: stands, or see hand_off
    outcome text, expired uuid[], next_grant uuid, next_lease uuid, next_instance text,
    next_token bigint, next_acquired_at timestamptz, next_expires_at timestamptz,
    hints uuid[], hint_instances text[], watched boolean)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    c record;
    l locksidecar.locks;
    s locksidecar.leases;
    m record;
BEGIN
    PERFORM locksidecar.in_epoch();
    FOR c IN
        SELECT * FROM unnest(keys, tokens, leases, untold, successes, results, at_once, traceparents) WITH ORDINALITY
            AS u (key, token, lease_id, untold, success, result, at_once, traceparent, ord)
        ORDER BY u.key COLLATE "C"
    LOOP
        SELECT * INTO l FROM locksidecar.locks WHERE namespace = ns AND key = c.key FOR UPDATE;
        SELECT * INTO s FROM locksidecar.leases WHERE id = l.lease_id;
        IF s.hold_until IS NOT NULL THEN -- a burial may be under way, which lets it stand
            SELECT * INTO s FROM locksidecar.leases WHERE id = l.lease_id FOR NO KEY UPDATE;
        END IF;
        release.ord := c.ord; release.outcome := NULL; release.expired := NULL;
        release.hints := NULL; release.hint_instances := NULL;
        release.token := l.token; release.lease_id := l.lease_id;
        release.acquired_at := l.acquired_at; release.traceparent := l.traceparent;
        release.watched := coalesce(l.watched, false); release.now := clock_timestamp();
        release.state := locksidecar.judge(c.token, c.lease_id, l, s);
        IF c.untold AND release.state = 'holds' AND (s.repeated OR s.instance <> its_instance) THEN
            release.state := 'other'; -- it may have been told elsewhere
        END IF;

        IF c.success AND release.state = 'holds' AND l.contended THEN
            UPDATE locksidecar.waiters q SET outcome = 'success', result = c.result
            WHERE q.namespace = ns AND q.key = c.key AND q.id > l.served AND q.skip AND q.outcome IS NULL;
        END IF;
        IF release.state = 'holds' AND s.hold_until > clock_timestamp() AND NOT c.at_once THEN
            release.outcome := 'stands';
            UPDATE locksidecar.leases SET standing = true, expires_at = hold_until WHERE id = s.id;
            UPDATE locksidecar.locks SET grant_id = NULL, stopping = NULL, stop_reason = NULL
            WHERE namespace = ns AND key = c.key;
        ELSIF release.state = 'holds' OR (release.state = 'expired' AND NOT coalesce(s.standing, false)
            AND l.lease_id IS NOT NULL AND (s.id IS NOT NULL OR l.contended))
        THEN
            -- The time last: the next grant is not older than this.
            SELECT h.outcome, h.expired, h.grant_id, h.lease_id, h.instance, h.token, h.acquired_at, h.expires_at,
                h.hints, h.hint_instances, clock_timestamp()
            INTO release.outcome, release.expired, release.next_grant, release.next_lease, release.next_instance,
                release.next_token, release.next_acquired_at, release.next_expires_at,
                release.hints, release.hint_instances, release.now
            FROM locksidecar.pass_on(l, s, c.traceparent) h;
        END IF;

        IF release.outcome = 'stands' OR (release.state = 'released' AND s.standing) THEN
            SELECT f.hints, f.hint_instances INTO release.hints, release.hint_instances
            FROM locksidecar.first_in_line(ns, c.key, 100) f;
        ELSIF release.state = 'unknown' AND c.token < l.token AND s.id IS NOT NULL AND l.grant_id IS NOT NULL THEN
            release.hints := ARRAY[l.grant_id]; release.hint_instances := ARRAY[s.instance];
        END IF;
        IF c.success AND release.state IN ('holds', 'released', 'unknown') THEN
            SELECT array_agg(q.grant_id) AS hints, array_agg(o.instance) AS hint_instances INTO m
            FROM locksidecar.waiters q JOIN locksidecar.leases o ON o.id = q.lease_id
            WHERE q.namespace = ns AND q.key = c.key AND q.outcome IS NOT NULL;
            release.hints := m.hints || release.hints;
            release.hint_instances := m.hint_instances || release.hint_instances;
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
    ord integer, state text,
    token bigint, acquired_at timestamptz, expires_at timestamptz, now timestamptz,
    lease_id uuid, instance text, pod text, renewed boolean, standing boolean,
    session text, owner text, data text, traceparent text,
    stopping timestamptz, stop_reason text, grant_id uuid, waiting integer,
    -- who is first in line behind a lock whose remaining time was set
    hints uuid[], hint_instances text[])
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
        amend.hints := NULL; amend.hint_instances := NULL;

        IF amend.state = 'holds' AND c.ttl > interval '0' AND NOT s.renewed THEN
            UPDATE locksidecar.leases
            SET ttl = c.ttl, expires_at = greatest(clock_timestamp() + c.ttl, hold_until)
            WHERE id = s.id AND expires_at > clock_timestamp() AND NOT standing
            RETURNING * INTO s;
            IF NOT FOUND THEN
                amend.state := 'expired';
            ELSIF l.contended THEN
                SELECT f.hints, f.hint_instances INTO amend.hints, amend.hint_instances
                FROM locksidecar.first_in_line(ns, c.key, 1) f;
            END IF;
        END IF;
        IF amend.state = 'holds' AND c.set_data THEN
            UPDATE locksidecar.locks SET data = c.data WHERE namespace = ns AND key = c.key
            RETURNING * INTO l;
        END IF;

        RETURN QUERY
        SELECT c.ord::integer, amend.state, l.token, l.acquired_at, s.expires_at, clock_timestamp(),
            s.id, s.instance, s.pod, s.renewed, s.standing, l.session, l.owner, l.data, l.traceparent,
            l.stopping, l.stop_reason, l.grant_id,
            (SELECT count(*)::integer FROM locksidecar.waiters q
                WHERE q.namespace = ns AND q.key = c.key AND q.id > l.served AND q.outcome IS NULL),
            amend.hints, amend.hint_instances;
    END LOOP;
END
$$;
-- +goose StatementEnd

-- undo frees what attempts of unknown outcome hold, and takes them out of the
-- queues. lock_key waits for an attempt that is still under way (invariant 7). A
-- bind:ttl lock that another instance was granted, too, is left: see ask; and so is a
-- place in line that another instance keeps. A hold is ignored, for nobody was told of
-- the grant; but not when another instance was, and it is gone. lapsed: the grant had ended
-- before, with its lease.
-- +goose StatementBegin
CREATE FUNCTION locksidecar.undo(
    ns text, not_after timestamptz, its_instance text, keys text[], grants uuid[])
RETURNS TABLE (
    namespace text, key text, outcome text, expired uuid[], grant_id uuid, lease_id uuid, instance text,
    token bigint, acquired_at timestamptz, expires_at timestamptz, hints uuid[], hint_instances text[],
    watched boolean, ended bigint, now timestamptz, lapsed boolean)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    a record;
    l locksidecar.locks;
    its_lease locksidecar.leases;
BEGIN
    PERFORM locksidecar.in_epoch();
    FOR a IN
        SELECT * FROM unnest(keys, grants) AS u (key, grant_id) ORDER BY u.key COLLATE "C"
    LOOP
        l := locksidecar.lock_key(ns, a.key);
        PERFORM locksidecar.in_time(not_after);
        DELETE FROM locksidecar.waiters w WHERE w.namespace = ns AND w.grant_id = a.grant_id
        AND NOT EXISTS (SELECT FROM locksidecar.leases s WHERE s.id = w.lease_id AND s.instance <> its_instance);
        SELECT * INTO its_lease FROM locksidecar.leases s WHERE s.id = l.lease_id;
        CONTINUE WHEN (NOT its_lease.renewed OR its_lease.standing)
            AND (its_lease.repeated OR its_lease.instance <> its_instance);
        IF l.grant_id = a.grant_id AND l.lease_id IS NOT NULL THEN
            RETURN QUERY SELECT ns, a.key, h.*, clock_timestamp(),
                coalesce(its_lease.expires_at <= clock_timestamp() OR its_lease.standing, true)
            FROM locksidecar.hand_off(ns, a.key, l.lease_id, l.token, '') h;
        END IF;
    END LOOP;
END
$$;
-- +goose StatementEnd

UPDATE locksidecar.meta SET schema_version = 2, oldest_version = 2;
