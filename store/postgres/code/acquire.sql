-- lock_key locks the row of a key, or makes a free one. It waits for an insertion of the key that is in flight.
-- The token of a new row is not used by a grant: see give.
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
        VALUES (ns, k, locksidecar.token_at(clock_timestamp()), clock_timestamp())
        ON CONFLICT DO NOTHING;
    END LOOP;
END
$$;

-- give grants a key, or with w.share_limit a share of it, to an attempt w, which need not be a row of waiters. For a
-- share, the key is free, or it has shares and its limit is not reached. The caller has locked the lock row, so the
-- tokens of a key grow in the order of its grants (promise 3), even if grants are faster than the clock. The 255
-- tokens after each are reserved for its cohort: see cohort. first_token is this history's, because in_history has
-- read that row before. expires_at is until when the grant lasts even if w.lease_id ends, or null. slot is that of a
-- share, and otherwise null. its_keepable: the instance may keep the key after this grant.
--
-- give raises queue_after to w.id. So w.id is passed only if no earlier waiter is left, and is null otherwise. by_release is the
-- trace context of the release that hands the key over, or empty.
--
-- A bind:ttl lock lasts at least as long as its min_hold.
CREATE OR REPLACE FUNCTION locksidecar.give(
    w locksidecar.waiters, its_instance text, its_pod text, by_release text, its_keepable boolean,
    OUT token bigint, OUT acquired_at timestamptz, OUT expires_at timestamptz, OUT slot integer)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    shares CONSTANT boolean := w.share_limit IS NOT NULL;
    its_lease uuid := w.lease_id;
    shown locksidecar.waiters := w; -- what the lock row tells of the holder
BEGIN
    give.acquired_at := clock_timestamp();
    give.expires_at := give.acquired_at + greatest(w.ttl, w.min_hold);
    IF w.ttl IS NOT NULL THEN
        its_lease := gen_random_uuid();
        INSERT INTO locksidecar.leases (id, instance, pod, renewed, ttl, expires_at, namespace, key)
        VALUES (its_lease, its_instance, its_pod, false, w.ttl, give.expires_at, w.namespace, w.key);
    END IF;
    IF shares THEN
        give.slot := CASE WHEN w.share_limit > 0 THEN locksidecar.free_slot(w.namespace, w.key) ELSE 0 END;
        shown.lease_id := locksidecar.shared_lease(); shown.session := ''; shown.owner := ''; shown.data := NULL;
        shown.traceparent := ''; shown.min_hold := NULL;
    ELSE
        shown.lease_id := its_lease;
    END IF;
    UPDATE locksidecar.locks l
    SET lease_id = shown.lease_id, attempt_id = w.attempt_id, share_limit = w.share_limit,
        token = greatest(locksidecar.token_at(give.acquired_at), (SELECT m.first_token FROM locksidecar.meta m), l.token + 256),
        contended = EXISTS (
            SELECT FROM locksidecar.waiters q
            WHERE q.namespace = w.namespace AND q.key = w.key AND q.id > greatest(l.queue_after, w.id) AND q.outcome IS NULL),
        queue_after = greatest(l.queue_after, w.id), keepable = its_keepable, stopping = NULL, stop_reason = NULL,
        session = shown.session, owner = shown.owner, acquired_at = give.acquired_at,
        data = shown.data, traceparent = shown.traceparent, handed_by = CASE WHEN shares THEN '' ELSE by_release END, freed_at = NULL,
        hold_until = give.acquired_at + shown.min_hold,
        hold_instance = CASE WHEN shown.min_hold IS NOT NULL THEN its_instance END,
        hold_pod = CASE WHEN shown.min_hold IS NOT NULL THEN its_pod END
    WHERE l.namespace = w.namespace AND l.key = w.key
    RETURNING l.token INTO give.token;
    IF shares THEN
        INSERT INTO locksidecar.shares
            (namespace, key, token, lease_id, attempt_id, slot, session, owner, acquired_at, data, traceparent, handed_by,
            hold_until, hold_instance, hold_pod)
        VALUES (w.namespace, w.key, give.token, its_lease, w.attempt_id, give.slot, w.session, w.owner,
            give.acquired_at, w.data, w.traceparent, by_release, give.acquired_at + w.min_hold,
            CASE WHEN w.min_hold IS NOT NULL THEN its_instance END, CASE WHEN w.min_hold IS NOT NULL THEN its_pod END);
    END IF;
END
$$;

-- show returns a lock, or a share that is seen as one, with its lease, or null.
CREATE OR REPLACE FUNCTION locksidecar.show(
    l locksidecar.locks, s locksidecar.leases, waiting bigint, share_limit integer, slot integer, holders text)
RETURNS locksidecar.shown_lock
LANGUAGE sql AS $$
    SELECT ROW(
        l.token, l.acquired_at, greatest(s.expires_at, l.hold_until), clock_timestamp(),
        s.id, coalesce(s.instance, l.hold_instance), coalesce(s.pod, l.hold_pod), s.renewed,
        l.hold_until > clock_timestamp() AND (s.expires_at > clock_timestamp()) IS NOT TRUE, l.keepable,
        l.session, l.owner, l.data, l.traceparent, l.stopping, l.stop_reason, l.attempt_id,
        waiting, share_limit, slot, holders)::locksidecar.shown_lock
$$;

-- ask does with rows what Op.ask in store/key/ask.go does for the other stores, in fewer lines. The steps have the same names: Repeat, Skipped, Lease,
-- Available?, Quiet, Limit, and then Grant, Dead or Held. Dead is only here: a dead holder ends in another transaction, so ask answers
-- dead, and the caller asks again. The key machine ends it at once.
--
-- ask grants keys that are free or whose holder is dead, in the order of the keys, and for one key in the order
-- of the asks. If a key is held, it enqueues the attempt (with may_wait) or returns the holder. States, and what else
-- is set:
--
--   granted   The attempt has the key: token, acquired_at, expires_at, and slot of a share. ended is the token of a
--             dead holder's grant that ends here, for watchers. handed_by belongs to a grant that is found again.
--             keepable: see Kept keys in doc.go.
--   queued    The attempt waits: queue_position, the holder, cohort and alone. recall is the holder's instance if
--             it may keep the key, and must learn that somebody waits.
--   held      Another attempt has the key, or a pending min_hold keeps it: the holder. Only without may_wait.
--   mismatch  An ask for a share names another limit than the shares, or the shared waiters: the holder.
--   lost      The asker's lease is not alive.
--   skipped   A release with success skipped the waiter, which asks again: result.
--   quiet     Nothing is granted before expires_at. Only without may_wait: a waiter is queued behind a pending hold
--             until that time, see hold_quiet.
--   dead      The holder's lease (dead) has expired, or is gone (lease_id is null) and left waiters. The caller reaps it,
--             or hands the key off, in a transaction of its own, and asks again. If the key is shared, or an expired
--             waiter names a limit, to_reap contains the leases that are reaped first. With a queue_position, the
--             attempt waits already.
--
-- A repeat may find its share dead, and kept by a min_hold. It waits for the end of that hold, because an attempt has
-- at most one share. cohort: see the function cohort. It is null unless the holder, the attempt and all waiters between
-- them are under one lease. Then the sidecar may extend the cohort of the holder. When several attempts for a key are
-- enqueued by one statement, only the last of them has it. alone reports this condition for each of them.
--
-- A waiter is inserted while the holder's lease is locked FOR KEY SHARE. A reap either waits for that and sees
-- the waiter, or came before and is seen here. Otherwise the reap could run in between, and the waiter would
-- never be served (promise 5).
--
-- If all attempts are only enqueued, the commit waits neither for the disk nor for a standby, because releases
-- need the lock row meanwhile. A crash can then forget queue positions, but nothing that was committed before:
-- see doc.go. A grant waits, even one that is found again (promise 4). A position that moves to another lease
-- waits too, because the first instance no longer cancels it.
CREATE OR REPLACE FUNCTION locksidecar.ask(
    ns text, not_after timestamptz, may_wait boolean, its_instance text, its_pod text,
    keys text[], attempts uuid[], leases uuid[], ttls interval[], min_holds interval[], skips boolean[],
    sessions text[], owners text[], datas text[], traceparents text[], limits integer[], lasts bigint[])
RETURNS TABLE (
    ord bigint, state text, dead uuid, to_reap uuid[], queue_position bigint, result text, watched boolean, ended bigint,
    handed_by text, cohort uuid[], alone boolean, keepable boolean, recall text, shown locksidecar.shown_lock)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    a record;
    w locksidecar.waiters; -- the attempt
    l locksidecar.locks; -- the lock row; first the attempt's share of a shared key, if it has one
    h locksidecar.leases; -- the holder's
    whole locksidecar.locks; -- the lock row of a shared key
    shared boolean; -- the key is
    again boolean; -- the attempt has a share of it already
    alive boolean; -- the holder's lease lives
    on_hold boolean; -- a min_hold keeps the key, with a holder or without
    its_end timestamptz; -- of the asker's lease
    available boolean;
    quiet timestamptz; -- the end of the quiet time
    mismatch boolean; -- others name another limit
    m record;
    p record;
    queued integer := 0; -- waiters that did not wait before
    -- These belong to last_key. The next asks for the same key use them again, because it takes long to read a long queue or many shares.
    last_key text;
    looked boolean; -- shared, and need not be settled
    holders text; -- of a shared key
    counted boolean; -- its queue was
    length bigint; -- of the queue
    named integer; -- the limit that shared waiters in it name
    behind_own boolean; -- all waiters in it are under the holder's lease
    recalled boolean; -- an attempt recalls the key
    -- Keys whose attempts were enqueued by one statement, and what enqueue_together says of them.
    together text[];
    lengths bigint[];
    named_limits integer[];
    alones boolean[];
BEGIN
    PERFORM locksidecar.in_history();
    -- Many attempts that only wait are queued by one statement.
    IF may_wait AND cardinality(keys) > 3 THEN -- for fewer, this costs more than it saves
        SELECT t.together, t.lengths, t.named_limits, t.alones INTO together, lengths, named_limits, alones FROM locksidecar.enqueue_together(
            ns, not_after, its_instance, keys, attempts, leases, ttls, min_holds, skips, sessions, owners, datas, traceparents, limits) t;
        RETURN QUERY
        SELECT u.ord, 'queued', NULL::uuid, NULL::uuid[], k.length + u.n, NULL::text, l.watched, NULL::bigint, '',
            CASE WHEN u.last AND k.alone AND u.lease_id = l.lease_id THEN locksidecar.cohort(ns, u.key) END,
            k.alone AND u.lease_id = l.lease_id, false, NULL,
            ROW( -- as show does, which needs whole rows: these take 4% of the statement
                l.token, l.acquired_at, greatest(s.expires_at, l.hold_until), clock_timestamp(),
                s.id, s.instance, s.pod, s.renewed, false, l.keepable, l.session, l.owner, l.data, l.traceparent,
                l.stopping, l.stop_reason, NULL, k.length + u.n, k.named, NULL, NULL)::locksidecar.shown_lock
        FROM (
            SELECT key, lease_id, ord, row_number() OVER (PARTITION BY key ORDER BY ord) AS n,
                lead(ord) OVER (PARTITION BY key ORDER BY ord) IS NULL AS last
            FROM unnest(keys, leases) WITH ORDINALITY AS a (key, lease_id, ord)
        ) u
        JOIN unnest(together, lengths, named_limits, alones) AS k (key, length, named, alone) ON k.key = u.key
        CROSS JOIN LATERAL (SELECT * FROM locksidecar.locks WHERE namespace = ns AND key = u.key OFFSET 0) l
        CROSS JOIN LATERAL (SELECT * FROM locksidecar.leases WHERE id = l.lease_id OFFSET 0) s;
        GET DIAGNOSTICS queued = ROW_COUNT;
        IF queued = cardinality(keys) THEN
            PERFORM set_config('synchronous_commit', 'off', true);
            RETURN;
        END IF;
    END IF;
    -- The others, one after the other.
    FOR a IN
        SELECT * FROM unnest(keys, attempts, leases, ttls, min_holds, skips, sessions, owners, datas, traceparents, limits, lasts)
            WITH ORDINALITY AS u (key, attempt_id, lease_id, ttl, min_hold, skip, session, owner, data, traceparent, share_limit, last, ord)
        WHERE together IS NULL OR u.key <> ALL (together)
        ORDER BY u.key COLLATE "C", u.ord
    LOOP
        ask.ord := a.ord;
        IF last_key = a.key AND ask.state = 'dead' THEN -- the previous ask looks again, and this one must not overtake it
            ask.queue_position := NULL;
            RETURN NEXT;
            CONTINUE;
        END IF;
        IF last_key IS DISTINCT FROM a.key THEN
            last_key := a.key; looked := false; holders := NULL; counted := false; recalled := false;
        END IF;
        ask.dead := NULL; ask.queue_position := NULL; ask.ended := NULL; ask.handed_by := ''; ask.to_reap := NULL;
        ask.cohort := NULL; ask.alone := NULL; ask.keepable := false; ask.recall := NULL; shown := NULL;
        w.namespace := ns; w.key := a.key; w.attempt_id := a.attempt_id; w.lease_id := a.lease_id;
        w.ttl := NULLIF(a.ttl, interval '0'); w.min_hold := NULLIF(a.min_hold, interval '0'); w.skip := a.skip;
        w.session := a.session; w.owner := a.owner; w.data := a.data; w.traceparent := a.traceparent;
        w.share_limit := a.share_limit;

        -- Who holds the key? From here on nobody else changes its row.
        l := locksidecar.lock_key(ns, w.key);
        PERFORM locksidecar.in_time(not_after);
        ask.watched := l.watched;
        h := NULL;
        shared := l.share_limit IS NOT NULL;
        IF shared THEN
            whole := l;
            l := locksidecar.as_lock(l, NULL, w.attempt_id);
            again := l.lease_id <> whole.lease_id;
        END IF;
        IF l.lease_id IS NOT NULL THEN
            SELECT * INTO h FROM locksidecar.leases s WHERE s.id = l.lease_id FOR KEY SHARE;
        END IF;
        shown.now := clock_timestamp();
        alive := coalesce(h.expires_at > shown.now, false);
        on_hold := coalesce(l.hold_until > shown.now, false);

        -- Repeat: it finds its grant, even if the lease under which it would wait is dead, because a
        -- bind:ttl lock has another lease.
        IF l.attempt_id = w.attempt_id AND alive THEN
            SELECT g.* INTO ask.handed_by, ask.keepable, shown.slot FROM locksidecar.found_again(l, h, its_instance) g;
            ask.state := 'granted'; ask.watched := false; -- the event was sent before
            shown.token := l.token; shown.acquired_at := l.acquired_at;
            shown.expires_at := greatest(h.expires_at, l.hold_until);
            RETURN NEXT;
            CONTINUE;
        END IF;
        -- Skipped: a release with success has skipped the waiter.
        IF may_wait THEN
            SELECT q.result INTO ask.result FROM locksidecar.waiters q JOIN locksidecar.leases o ON o.id = q.lease_id
            WHERE q.namespace = ns AND q.attempt_id = w.attempt_id AND q.outcome IS NOT NULL;
            IF FOUND THEN
                ask.state := 'skipped';
                RETURN NEXT;
                CONTINUE;
            END IF;
        END IF;
        -- Lease: the asker needs a living one.
        IF may_wait OR w.ttl IS NULL THEN
            SELECT s.expires_at INTO its_end FROM locksidecar.leases s
            WHERE s.id = w.lease_id AND s.expires_at > clock_timestamp();
            IF NOT FOUND THEN
                ask.state := 'lost';
                RETURN NEXT;
                CONTINUE;
            END IF;
        END IF;

        -- Available? A shared key may have to be settled first.
        IF shared THEN
            l := whole; h := NULL; alive := true;
            IF NOT looked THEN
                SELECT * INTO m FROM locksidecar.look(ns, w.key);
                IF m.settle THEN
                    ask.state := 'dead'; ask.dead := l.lease_id; ask.to_reap := m.to_reap;
                    RETURN NEXT;
                    CONTINUE;
                END IF;
                looked := true; holders := NULL;
            END IF;
            available := NOT again AND locksidecar.has_room(l, w.share_limit);
        ELSE
            available := l.lease_id IS NULL OR (h.id IS NULL AND NOT on_hold AND NOT (l.contended AND EXISTS (
                SELECT FROM locksidecar.waiters q
                WHERE q.namespace = ns AND q.key = w.key AND q.id > l.queue_after AND q.outcome IS NULL)));
        END IF;
        -- Quiet: in the quiet time nothing is granted.
        IF available THEN
            quiet := (SELECT m.quiet_until FROM locksidecar.meta m WHERE m.quiet_until > clock_timestamp());
            IF quiet IS NOT NULL AND NOT may_wait THEN
                ask.state := 'quiet'; shown.expires_at := quiet;
                RETURN NEXT;
                CONTINUE;
            ELSIF quiet IS NOT NULL THEN
                IF NOT shared THEN
                    l := locksidecar.hold_quiet(l, quiet);
                END IF;
                available := false; on_hold := true;
            END IF;
        END IF;
        -- Limit: do others name another one?
        mismatch := false;
        IF w.share_limit IS NOT NULL AND NOT available AND (alive OR on_hold) THEN
            m := locksidecar.other_limits(l, w.share_limit);
            mismatch := m.mismatch;
            IF m.to_reap IS NOT NULL THEN
                ask.state := 'dead'; ask.to_reap := m.to_reap; shown.lease_id := h.id;
                RETURN NEXT;
                CONTINUE;
            END IF;
        END IF;
        -- Grant.
        IF available THEN
            ask.state := 'granted';
            IF l.lease_id IS NOT NULL AND l.attempt_id <> locksidecar.shared_lease() AND NOT shared THEN
                ask.ended := l.token;
            END IF;
            -- Nobody waits. The last grant was released, though its min_hold can have kept the key until now.
            ask.keepable := coalesce(l.attempt_id IS NULL AND NOT shared AND NOT l.watched AND l.token = a.last, false);
            SELECT g.token, g.acquired_at, CASE WHEN w.ttl IS NULL THEN greatest(g.expires_at, its_end) ELSE g.expires_at END, g.slot
            INTO shown.token, shown.acquired_at, shown.expires_at, shown.slot
            FROM locksidecar.give(w, its_instance, its_pod, '', ask.keepable) g;
            shown.now := clock_timestamp();
            holders := NULL;
        -- Dead: the caller ends the holder, and asks again.
        ELSIF NOT alive AND NOT on_hold THEN
            ask.state := 'dead';
            ask.dead := l.lease_id; shown.lease_id := h.id;
        -- Held: the asker is queued, or gets the holder as its answer.
        ELSE
            ask.state := 'held';
            IF NOT counted THEN
                counted := true;
                SELECT count(*), max(q.share_limit), coalesce(bool_and(q.lease_id = l.lease_id), true) INTO length, named, behind_own FROM locksidecar.waiters q
                WHERE q.namespace = ns AND q.key = w.key AND q.id > l.queue_after AND q.outcome IS NULL;
            END IF;
            IF mismatch THEN
                ask.state := 'mismatch';
            ELSIF may_wait THEN
                -- Also if others wait already, because nobody knows whether their instance has sent its recall. Once for a batch.
                IF l.keepable AND h.instance <> its_instance AND NOT recalled THEN
                    ask.recall := h.instance; recalled := true;
                END IF;
                p := locksidecar.enqueue(l, w, length);
                ask.state := 'queued'; ask.queue_position := p.queue_position;
                IF NOT p.moved THEN
                    queued := queued + 1;
                ELSIF shared THEN -- it may have blocked others
                    ask.state := 'dead'; ask.dead := l.lease_id;
                    counted := false; looked := false;
                    RETURN NEXT;
                    CONTINUE;
                END IF;
                length := greatest(length, ask.queue_position); named := coalesce(w.share_limit, named);
                behind_own := behind_own AND w.lease_id = l.lease_id;
                ask.alone := behind_own;
                IF behind_own THEN
                    ask.cohort := locksidecar.cohort(ns, w.key);
                END IF;
            END IF;
            IF shared AND holders IS NULL THEN
                holders := locksidecar.shown(ns, w.key, 8, false, NULL);
            END IF;
            shown := locksidecar.show(l, h, length, coalesce(l.share_limit, named), NULL, CASE WHEN shared THEN holders END);
        END IF;
        RETURN NEXT;
    END LOOP;
    IF queued = cardinality(keys) THEN
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;
END
$$;

-- found_again is for a repeat that finds its grant l, under the lease h. keepable: the instance may keep the key after it; a recall that came
-- before this repeat counts, too.
CREATE OR REPLACE FUNCTION locksidecar.found_again(
    l locksidecar.locks, h locksidecar.leases, its_instance text, OUT handed_by text, OUT keepable boolean, OUT slot integer)
LANGUAGE plpgsql AS $$
BEGIN
    -- Another instance was granted this bind:ttl lock. Both may deliver it, so neither may hand it back as undelivered.
    IF NOT h.renewed AND h.instance <> its_instance THEN
        UPDATE locksidecar.leases s SET repeated = true WHERE s.id = h.id;
    END IF;
    found_again.handed_by := l.handed_by;
    found_again.keepable := l.keepable AND h.instance = its_instance AND NOT l.watched AND NOT locksidecar.is_awaited(l, l.attempt_id);
    found_again.slot := CASE WHEN l.share_limit IS NOT NULL THEN locksidecar.slot_of(l) END;
END
$$;

-- has_room reports whether a shared key has room for one more share under a limit, and nobody waits. The caller has locked the lock row.
CREATE OR REPLACE FUNCTION locksidecar.has_room(l locksidecar.locks, its_limit integer) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN coalesce(its_limit = l.share_limit, false) AND NOT EXISTS (
        SELECT FROM locksidecar.waiters q
        WHERE l.contended AND q.namespace = l.namespace AND q.key = l.key AND q.id > l.queue_after AND q.outcome IS NULL)
    AND (l.share_limit = 0 OR l.share_limit > (
        SELECT count(*) FROM locksidecar.shares k WHERE k.namespace = l.namespace AND k.key = l.key));
END
$$;

-- is_awaited reports whether another living attempt than this one waits for a key. The caller has locked the lock row.
CREATE OR REPLACE FUNCTION locksidecar.is_awaited(l locksidecar.locks, but_attempt uuid) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN l.contended AND EXISTS (
        SELECT FROM locksidecar.waiters q JOIN locksidecar.leases o ON o.id = q.lease_id
        WHERE q.namespace = l.namespace AND q.key = l.key AND q.id > l.queue_after AND q.outcome IS NULL AND q.attempt_id <> but_attempt
        AND o.expires_at > clock_timestamp());
END
$$;

-- hold_quiet holds a key without a holder until the end of the quiet time, as a pending min_hold does. Its
-- waiters check again then, and the first one gets the key. The caller has locked the lock row. If the last
-- grants were shares, their ends were already reported: then shared_lease() replaces the attempt. So later
-- claims are answered that the last grant has expired, and its end is not reported again.
CREATE OR REPLACE FUNCTION locksidecar.hold_quiet(l locksidecar.locks, quiet timestamptz) RETURNS locksidecar.locks
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE locksidecar.locks k
    SET lease_id = gen_random_uuid(), stopping = NULL, stop_reason = NULL,
        attempt_id = CASE WHEN l.attempt_id IS NOT NULL AND k.share_limit IS NOT NULL THEN locksidecar.shared_lease() ELSE l.attempt_id END,
        session = '', owner = '', data = NULL, traceparent = '', handed_by = '', share_limit = NULL, keepable = false,
        acquired_at = coalesce(k.acquired_at, clock_timestamp()), freed_at = NULL,
        hold_until = greatest(k.hold_until, quiet), hold_instance = NULL, hold_pod = NULL
    WHERE k.namespace = l.namespace AND k.key = l.key
    RETURNING * INTO l;
    RETURN l;
END
$$;

-- enqueue_together enqueues the attempts for keys whose holders live by one statement, in the order of the
-- attempts. It returns these keys, the previous lengths of their queues, the limits that shared waiters name, and
-- whether all earlier waiters are under the holder's lease. It omits keys of which a share is requested, and those that another
-- instance may keep, but locks them, because ask must not lock them after later ones. If an attempt is a repeat, is skipped, or has no living lease, it returns no keys and leaves no waiter behind,
-- because ask handles each attempt, and may find that a holder has died meanwhile.
CREATE OR REPLACE FUNCTION locksidecar.enqueue_together(
    ns text, not_after timestamptz, its_instance text, keys text[], attempts uuid[], leases uuid[], ttls interval[],
    min_holds interval[], skips boolean[], sessions text[], owners text[], datas text[], traceparents text[], limits integer[],
    OUT together text[], OUT lengths bigint[], OUT named_limits integer[], OUT alones boolean[])
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    a record;
    l locksidecar.locks;
    holder text; -- its instance
    asks integer := 0; -- for these keys
    added record;
    last_passed bigint := 0::bigint;
BEGIN
    together := '{}';
    FOR a IN
        SELECT u.key, count(*)::integer AS asks, count(u.share_limit) AS shares FROM unnest(keys, limits) AS u (key, share_limit)
        GROUP BY u.key ORDER BY u.key COLLATE "C"
    LOOP
        l := locksidecar.lock_key(ns, a.key);
        CONTINUE WHEN a.shares > 0;
        SELECT s.instance INTO holder FROM locksidecar.leases s
        WHERE s.id = l.lease_id AND s.expires_at > clock_timestamp() FOR KEY SHARE;
        CONTINUE WHEN NOT FOUND OR l.attempt_id = ANY (attempts) OR l.keepable AND holder <> its_instance;
        IF NOT l.contended THEN
            UPDATE locksidecar.locks SET contended = true WHERE namespace = ns AND key = a.key;
        END IF;
        asks := asks + a.asks;
        together := together || a.key;
        last_passed := greatest(last_passed, l.queue_after);
        SELECT lengths || count(*), named_limits || max(q.share_limit), alones || coalesce(bool_and(q.lease_id = l.lease_id), true)
        INTO lengths, named_limits, alones FROM locksidecar.waiters q
        WHERE q.namespace = ns AND q.key = a.key AND q.id > l.queue_after AND q.outcome IS NULL;
    END LOOP;
    PERFORM locksidecar.in_time(not_after);
    WITH new AS (
        INSERT INTO locksidecar.waiters
            (attempt_id, namespace, key, lease_id, ttl, min_hold, skip, session, owner, data, traceparent)
        SELECT u.attempt_id, ns, u.key, u.lease_id, NULLIF(u.ttl, interval '0'), NULLIF(u.min_hold, interval '0'), u.skip,
            u.session, u.owner, u.data, u.traceparent
        FROM unnest(keys, attempts, leases, ttls, min_holds, skips, sessions, owners, datas, traceparents)
            WITH ORDINALITY AS u (key, attempt_id, lease_id, ttl, min_hold, skip, session, owner, data, traceparent, ord)
        WHERE u.key = ANY (together)
        AND EXISTS (SELECT FROM locksidecar.leases s WHERE s.id = u.lease_id AND s.expires_at > clock_timestamp())
        ORDER BY u.ord
        ON CONFLICT (namespace, attempt_id) DO NOTHING
        RETURNING id
    )
    SELECT count(*) AS waiters, min(id) AS first, array_agg(id) AS ids INTO added FROM new;
    IF added.first <= last_passed THEN -- the sequence was set back
        UPDATE locksidecar.locks SET queue_after = 0
        WHERE namespace = ns AND key = ANY (together) AND queue_after >= added.first;
    END IF;
    IF added.waiters < asks THEN
        DELETE FROM locksidecar.waiters WHERE id = ANY (added.ids);
        together := '{}';
    END IF;
END
$$;

-- enqueue makes a waiter of an attempt, unless it already is one, and returns its queue position. The caller
-- has locked the lock row and counted the queue (ahead). moved: the attempt waited under another lease, and has
-- lost that position.
CREATE OR REPLACE FUNCTION locksidecar.enqueue(
    l locksidecar.locks, w locksidecar.waiters, ahead bigint, OUT queue_position bigint, OUT moved boolean)
LANGUAGE plpgsql AS $$
DECLARE
    again boolean := false; -- it waits already, or did under another lease
    its_id bigint;
BEGIN
    moved := false;
    IF NOT l.contended THEN
        UPDATE locksidecar.locks SET contended = true WHERE namespace = l.namespace AND key = l.key;
    END IF;
    LOOP
        INSERT INTO locksidecar.waiters
            (attempt_id, namespace, key, lease_id, ttl, min_hold, skip, session, owner, data, traceparent, share_limit)
        VALUES (w.attempt_id, w.namespace, w.key, w.lease_id, w.ttl, w.min_hold, w.skip,
            w.session, w.owner, w.data, w.traceparent, w.share_limit)
        ON CONFLICT (namespace, attempt_id) DO NOTHING RETURNING id INTO its_id;
        IF its_id <= l.queue_after THEN -- the sequence was set back
            UPDATE locksidecar.locks SET queue_after = 0 WHERE namespace = l.namespace AND key = l.key;
        END IF;
        IF its_id IS NOT NULL AND NOT again THEN
            queue_position := ahead + 1;
            RETURN;
        END IF;
        EXIT WHEN its_id IS NOT NULL;
        again := true;
        SELECT id INTO its_id FROM locksidecar.waiters
        WHERE namespace = w.namespace AND attempt_id = w.attempt_id AND lease_id = w.lease_id;
        EXIT WHEN FOUND;
        DELETE FROM locksidecar.waiters
        WHERE namespace = w.namespace AND attempt_id = w.attempt_id AND lease_id <> w.lease_id;
        moved := moved OR FOUND;
    END LOOP;
    queue_position := (
        SELECT count(*) FROM locksidecar.waiters q
        WHERE q.namespace = w.namespace AND q.key = w.key AND q.id > l.queue_after AND q.id <= its_id AND q.outcome IS NULL);
END
$$;
