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

-- lock_key locks the row of a key and makes it, free, if there is none. An
-- insertion of the same key that is still under way is waited for.
CREATE OR REPLACE FUNCTION locksidecar.lock_key(ns text, k text) RETURNS locksidecar.locks
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
CREATE OR REPLACE FUNCTION locksidecar.give(
    w locksidecar.waiters, its_instance text, its_pod text, by_release text,
    OUT token bigint, OUT acquired_at timestamptz, OUT expires_at timestamptz)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    its_lease uuid := w.lease_id;
BEGIN
    give.acquired_at := clock_timestamp();
    IF w.ttl IS NOT NULL THEN
        its_lease := gen_random_uuid();
        give.expires_at := give.acquired_at + greatest(w.ttl, w.min_hold);
        INSERT INTO locksidecar.leases (id, instance, pod, renewed, ttl, expires_at, hold_until, namespace, key)
        VALUES (its_lease, its_instance, its_pod, false, w.ttl, give.expires_at, give.acquired_at + w.min_hold,
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
    SET lease_id = its_lease, token = nextval('locksidecar.tokens'), grant_id = w.grant_id,
        contended = EXISTS (
            SELECT FROM locksidecar.waiters q
            WHERE q.namespace = w.namespace AND q.key = w.key AND q.id > greatest(l.served, w.id) AND q.outcome IS NULL),
        served = greatest(l.served, w.id), stopping = NULL, stop_reason = NULL, session = w.session, owner = w.owner, acquired_at = give.acquired_at,
        data = w.data, traceparent = w.traceparent, handed_by = by_release, freed_at = NULL
    WHERE l.namespace = w.namespace AND l.key = w.key
    RETURNING l.token INTO give.token;
END
$$;

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
CREATE OR REPLACE FUNCTION locksidecar.ask(
    ns text, not_after timestamptz, may_wait boolean, its_instance text, its_pod text,
    keys text[], grants uuid[], leases uuid[], ttls interval[], min_holds interval[], skips boolean[],
    sessions text[], owners text[], datas text[], traceparents text[])
RETURNS TABLE (
    ord bigint, state text, dead uuid, queue_position bigint, result text, watched boolean, ended bigint,
    token bigint, acquired_at timestamptz, expires_at timestamptz, now timestamptz,
    lease_id uuid, instance text, pod text, renewed boolean, hold_pending boolean,
    session text, owner text, data text, traceparent text,
    stopping timestamptz, stop_reason text, waiting bigint,
    handed_by text) -- of a grant that is found again
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    a record;
    w locksidecar.waiters;
    l locksidecar.locks;
    h locksidecar.leases;
    counted text; -- the key whose line was counted; line is how many stand there
    line bigint;
    p record;
    queued integer := 0; -- how many stand in line who did not elsewhere
BEGIN
    PERFORM locksidecar.in_epoch();
    FOR a IN
        SELECT * FROM unnest(keys, grants, leases, ttls, min_holds, skips, sessions, owners, datas, traceparents)
            WITH ORDINALITY AS u (key, grant_id, lease_id, ttl, min_hold, skip, session, owner, data, traceparent, ord)
        ORDER BY u.key COLLATE "C", u.ord
    LOOP
        ask.ord := a.ord; ask.dead := NULL; ask.queue_position := NULL; ask.ended := NULL; ask.waiting := 0;
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
        IF l.grant_id = w.grant_id AND h.expires_at > ask.now AND NOT h.hold_pending THEN
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
            WHERE s.id = w.lease_id AND s.expires_at > clock_timestamp() AND NOT s.hold_pending;
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
                p := locksidecar.enqueue(l, w, line);
                ask.state := 'queued'; ask.queue_position := p.queue_position;
                IF NOT p.moved THEN
                    queued := queued + 1;
                END IF;
                line := greatest(line, ask.queue_position);
            END IF;
            ask.waiting := line;
            ask.token := l.token; ask.acquired_at := l.acquired_at; ask.expires_at := h.expires_at;
            ask.lease_id := h.id; ask.instance := h.instance; ask.pod := h.pod; ask.renewed := h.renewed;
            ask.hold_pending := h.hold_pending; ask.stopping := l.stopping; ask.stop_reason := l.stop_reason;
            ask.session := l.session; ask.owner := l.owner; ask.data := l.data; ask.traceparent := l.traceparent;
        END IF;
        RETURN NEXT;
    END LOOP;
    IF queued = cardinality(keys) THEN
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;
END
$$;

-- enqueue makes a waiter of an ask, unless it is one already, and returns
-- its place. The caller has locked the lock row, and counted the line. A waiter that comes
-- again under another lease has lost its place: it has moved.
CREATE OR REPLACE FUNCTION locksidecar.enqueue(
    l locksidecar.locks, w locksidecar.waiters, ahead bigint, OUT queue_position bigint, OUT moved boolean)
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
            queue_position := ahead + 1;
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
    queue_position := (
        SELECT count(*) FROM locksidecar.waiters q
        WHERE q.namespace = w.namespace AND q.key = w.key AND q.id > l.served AND q.id <= its_id AND q.outcome IS NULL);
END
$$;
