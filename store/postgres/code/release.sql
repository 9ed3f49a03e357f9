-- claim_status decides a claim on a lock: holds, other (session), released, expired, unknown. A claim with a
-- lease comes from a session. Its lock may be held under another lease of the same instance: see move. For the
-- lock of an unrenewed lease (bind:ttl) the token is enough. The caller has called in_history, because a server that was
-- just promoted must not report a lease as expired: new_history would prolong it.
CREATE OR REPLACE FUNCTION locksidecar.claim_status(
    claimed_token bigint, claimed_lease uuid, its_instance text, l locksidecar.locks, s locksidecar.leases) RETURNS text
LANGUAGE sql AS $$
    SELECT CASE
        WHEN l.token IS DISTINCT FROM claimed_token OR l.acquired_at IS NULL THEN 'unknown'
        WHEN l.attempt_id IS NULL THEN 'released'
        WHEN l.lease_id IS NULL OR s.id IS NULL THEN 'expired'
        WHEN s.renewed AND s.id <> claimed_lease
            AND (claimed_lease = '00000000-0000-0000-0000-000000000000' OR s.instance <> its_instance) THEN 'other'
        WHEN s.expires_at <= clock_timestamp() THEN 'expired'
        ELSE 'holds'
    END
$$;

-- drop_served deletes waiters that got the lock from their sidecar: see cohort. ids are separated by commas.
-- The caller has locked the lock row. So must every UPDATE of a waiter: one at the same time would give the row
-- another ctid, and the waiter would stay. The waiters are deleted even if a failover has lost the grant.
-- Each id is looked up by itself. A condition on the key, or attempt_id = ANY, would let a plan from the time of a
-- small table scan the queue, with its dead rows.
CREATE OR REPLACE FUNCTION locksidecar.drop_served(ns text, k text, ids text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF ids <> '' THEN
        DELETE FROM locksidecar.waiters w
        USING unnest(string_to_array(ids, ',')::uuid[]) AS s (attempt_id)
        CROSS JOIN LATERAL (
            SELECT q.ctid AS at FROM locksidecar.waiters q WHERE q.namespace = ns AND q.attempt_id = s.attempt_id OFFSET 0) q
        WHERE w.ctid = q.at AND w.key = k;
    END IF;
END
$$;

-- settled calls pass_shares, and returns rows of the function release.
CREATE OR REPLACE FUNCTION locksidecar.settled(ns text, k text, by_release text)
RETURNS TABLE (
    state text, token bigint, lease_id uuid, acquired_at timestamptz, traceparent text, now timestamptz,
    outcome text, expired uuid[], next_attempt uuid, next_lease uuid, next_instance text,
    next_token bigint, next_acquired_at timestamptz, next_expires_at timestamptz,
    hints uuid[], hint_instances text[], watched boolean, cohort uuid[], slot integer)
LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY
    SELECT NULL::text, p.ended, locksidecar.shared_lease(), NULL::timestamptz, NULL::text, clock_timestamp(),
        p.outcome, p.expired, p.attempt_id, p.lease_id, p.instance, p.token, p.acquired_at, p.expires_at,
        p.hints, p.hint_instances, p.watched, NULL::uuid[], p.slot
    FROM locksidecar.pass_shares(ns, k, by_release) p;
END
$$;

-- release frees locks, or passes on those with waiters, in the order of the keys. It is for claims that a plain
-- UPDATE did not take. It leaves an undelivered grant if another instance was granted the lock, too: see ask.
-- It also frees a lock whose lease has expired and is not dead, because a late renewal could otherwise keep it.
--
-- A release with success marks the waiters with skip. They no longer wait, and the hand-off passes over them.
-- If the min_hold is not over, the lock is released but keeps the key (outcome hold_pending). Then the first
-- waiters check again (hints), because they expect a later end; so do the marked ones. If several waiters are
-- granted shares, all but the first have further rows without a state, as have the shares of a shared key. Such
-- a key is settled once, after the last of its claims, because that reads all of its shares. at_once ends the
-- min_hold, for the sidecar that has or had the lease of the grant, because the grant was not reported to a
-- caller, or is broken. A repeated release sends these hints, and that of the hand-off, again, because its
-- answer was lost.
CREATE OR REPLACE FUNCTION locksidecar.release(
    ns text, its_instance text, keys text[], tokens bigint[], leases uuid[], undelivered boolean[],
    successes boolean[], results text[], at_once boolean[], traceparents text[], served text[])
RETURNS TABLE (
    ord bigint, state text, token bigint, lease_id uuid, acquired_at timestamptz, traceparent text, now timestamptz,
    -- hold_pending, or as in pass_on
    outcome text, expired uuid[], next_attempt uuid, next_lease uuid, next_instance text,
    next_token bigint, next_acquired_at timestamptz, next_expires_at timestamptz,
    hints uuid[], hint_instances text[], watched boolean, cohort uuid[], slot integer)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    c record;
    l locksidecar.locks;
    s locksidecar.leases;
    m record;
    kept boolean; -- a min_hold keeps the key
    ends_hold boolean;
    r record;
    settling bigint; -- the claim after which a shared key is to be settled
    settled_by text; -- its trace context
BEGIN
    PERFORM locksidecar.in_history();
    FOR c IN
        SELECT *, lead(u.key) OVER (ORDER BY u.key COLLATE "C", u.ord) IS DISTINCT FROM u.key AS last
        FROM unnest(keys, tokens, leases, undelivered, successes, results, at_once, traceparents, served) WITH ORDINALITY
            AS u (key, token, lease_id, undelivered, success, result, at_once, traceparent, served, ord)
        ORDER BY u.key COLLATE "C", u.ord
    LOOP
        SELECT * INTO l FROM locksidecar.locks WHERE namespace = ns AND key = c.key FOR UPDATE;
        IF l.share_limit IS NOT NULL THEN
            r := locksidecar.release_share(
                l, its_instance, c.token, c.lease_id, c.undelivered, c.success, c.result, c.at_once, c.served);
            IF r.settle THEN
                settling := c.ord; settled_by := c.traceparent;
            END IF;
            RETURN QUERY SELECT c.ord, r.state, r.token, locksidecar.shared_lease(), r.acquired_at, r.traceparent, clock_timestamp(),
                r.outcome, NULL::uuid[], NULL::uuid, NULL::uuid, NULL::text, NULL::bigint, NULL::timestamptz, NULL::timestamptz,
                r.hints, r.hint_instances, l.watched, NULL::uuid[], NULL::integer;
            IF c.last AND settling IS NOT NULL THEN
                RETURN QUERY SELECT settling, p.* FROM locksidecar.settled(ns, c.key, settled_by) p;
                settling := NULL;
            END IF;
            CONTINUE;
        END IF;
        SELECT * INTO s FROM locksidecar.leases WHERE id = l.lease_id;
        release.ord := c.ord; release.outcome := NULL; release.expired := NULL; release.slot := NULL;
        release.hints := NULL; release.hint_instances := NULL; release.cohort := NULL;
        release.token := l.token; release.lease_id := l.lease_id;
        release.acquired_at := l.acquired_at; release.traceparent := l.traceparent;
        release.watched := coalesce(l.watched, false); release.now := clock_timestamp();
        release.state := locksidecar.claim_status(
            CASE WHEN c.served = '' THEN c.token ELSE locksidecar.granted_token(l.token, c.token) END, c.lease_id, its_instance, l, s);
        IF c.undelivered AND release.state = 'holds' AND (s.repeated OR s.instance <> its_instance) THEN
            release.state := 'other'; -- another instance may have delivered it
        END IF;
        IF c.served <> '' THEN
            PERFORM locksidecar.drop_served(ns, c.key, c.served);
        END IF;

        IF c.success AND release.state = 'holds' AND l.contended THEN
            UPDATE locksidecar.waiters q SET outcome = 'success', result = c.result
            WHERE q.namespace = ns AND q.key = c.key AND q.id > l.served AND q.skip AND q.outcome IS NULL;
        END IF;
        kept := coalesce(l.hold_until > clock_timestamp(), false);
        ends_hold := kept AND c.at_once AND (release.state = 'holds' OR (release.state = 'expired' AND l.lease_id = c.lease_id));
        IF ends_hold THEN
            UPDATE locksidecar.locks SET hold_until = NULL WHERE namespace = ns AND key = c.key;
        END IF;
        IF kept AND NOT ends_hold AND release.state = 'holds' THEN
            release.outcome := 'hold_pending';
            UPDATE locksidecar.locks
            SET lease_id = gen_random_uuid(), attempt_id = NULL, stopping = NULL, stop_reason = NULL
            WHERE namespace = ns AND key = c.key;
            DELETE FROM locksidecar.leases WHERE id = s.id AND NOT renewed;
        ELSIF kept AND NOT ends_hold AND release.state = 'expired' AND s.id IS NOT NULL THEN
            UPDATE locksidecar.locks SET lease_id = gen_random_uuid() WHERE namespace = ns AND key = c.key;
        ELSIF release.state = 'holds' OR ends_hold OR (release.state = 'expired' AND NOT kept
            AND l.lease_id IS NOT NULL AND (s.id IS NOT NULL OR l.contended))
        THEN
            -- The time comes last, so the next grant is not younger.
            r := locksidecar.pass_on(l, s, c.traceparent);
            release.outcome := r.outcome; release.expired := r.expired;
            release.next_attempt := r.attempt_id; release.next_lease := r.lease_id; release.next_instance := r.instance;
            release.next_token := r.token; release.next_acquired_at := r.acquired_at; release.next_expires_at := r.expires_at;
            release.hints := r.hints; release.hint_instances := r.hint_instances; release.slot := r.slot;
            release.now := clock_timestamp();
            IF release.next_instance = its_instance THEN
                release.cohort := locksidecar.cohort(ns, c.key);
            END IF;
        END IF;

        IF release.outcome = 'hold_pending' OR (release.state = 'released' AND kept) THEN
            SELECT f.hints, f.hint_instances INTO release.hints, release.hint_instances
            FROM locksidecar.first_waiters(ns, c.key, 100) f;
        ELSIF release.state = 'unknown' AND c.token < l.token AND s.id IS NOT NULL AND l.attempt_id IS NOT NULL THEN
            release.hints := ARRAY[l.attempt_id]; release.hint_instances := ARRAY[s.instance];
        END IF;
        IF c.success AND release.state IN ('holds', 'released', 'unknown') THEN
            SELECT array_agg(q.attempt_id) AS hints, array_agg(o.instance) AS hint_instances INTO m
            FROM locksidecar.waiters q JOIN locksidecar.leases o ON o.id = q.lease_id
            WHERE q.namespace = ns AND q.key = c.key AND q.outcome IS NOT NULL;
            release.hints := m.hints || release.hints;
            release.hint_instances := m.hint_instances || release.hint_instances;
        END IF;
        RETURN NEXT;
        IF release.slot IS NOT NULL THEN
            settling := c.ord; settled_by := c.traceparent;
        END IF;
        IF c.last AND settling IS NOT NULL THEN
            RETURN QUERY SELECT settling, p.* FROM locksidecar.settled(ns, c.key, settled_by) p;
            settling := NULL;
        END IF;
    END LOOP;
END
$$;

-- amend checks claims, and changes the data of locks, and the remaining time of unrenewed leases. If waiters
-- were served since (see cohort), the last of them becomes the holder. ended is then the token of the previous
-- grant, for watchers. With shares, an exclusive lock becomes a share: see downgrade. The caller hands the key
-- on then. An outdated primary does not even answer that a lock is held (in_history). States: see claim_status.
CREATE OR REPLACE FUNCTION locksidecar.amend(
    ns text, not_after timestamptz, its_instance text, keys text[], tokens bigint[], leases uuid[], ttls interval[],
    set_datas boolean[], datas text[], served text[], sessions text[], owners text[], acquired timestamptz[], traceparents text[],
    shares boolean[])
RETURNS TABLE (
    ord bigint, state text,
    token bigint, acquired_at timestamptz, expires_at timestamptz, now timestamptz,
    lease_id uuid, instance text, pod text, renewed boolean, hold_pending boolean,
    session text, owner text, data text, traceparent text,
    stopping timestamptz, stop_reason text, attempt_id uuid, waiting bigint, share_limit integer, slot integer, holders text,
    -- the first waiter for a lock whose remaining time was set
    hints uuid[], hint_instances text[], ended bigint)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    c record;
    l locksidecar.locks;
    s locksidecar.leases;
BEGIN
    PERFORM locksidecar.in_history();
    FOR c IN
        SELECT * FROM unnest(keys, tokens, leases, ttls, set_datas, datas, served, sessions, owners, acquired, traceparents, shares)
            WITH ORDINALITY AS u (key, token, lease_id, ttl, set_data, data, served, session, owner, acquired_at, traceparent, share, ord)
        ORDER BY u.key COLLATE "C", u.ord
    LOOP
        IF c.set_data OR c.ttl > interval '0' OR c.served <> '' OR c.share THEN
            SELECT * INTO l FROM locksidecar.locks WHERE namespace = ns AND key = c.key FOR UPDATE;
            PERFORM locksidecar.in_time(not_after);
        ELSE -- a check locks nothing, so its commit flushes nothing
            SELECT * INTO l FROM locksidecar.locks WHERE namespace = ns AND key = c.key;
        END IF;
        IF l.share_limit IS NOT NULL THEN
            l := locksidecar.as_lock(l, c.token, NULL);
        END IF;
        SELECT * INTO s FROM locksidecar.leases WHERE id = l.lease_id;
        amend.state := locksidecar.claim_status(
            CASE WHEN c.served = '' OR l.share_limit IS NOT NULL THEN c.token ELSE locksidecar.granted_token(l.token, c.token) END, c.lease_id, its_instance, l, s);
        amend.hints := NULL; amend.hint_instances := NULL; amend.ended := NULL;

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
        PERFORM locksidecar.drop_served(ns, c.key, c.served);
        IF amend.state = 'holds' AND c.served <> '' AND c.token > l.token THEN
            IF l.watched THEN
                amend.ended := l.token;
            END IF;
            UPDATE locksidecar.locks
            SET token = c.token, attempt_id = right(c.served, 36)::uuid, session = c.session, owner = c.owner,
                acquired_at = greatest(acquired_at, c.acquired_at), traceparent = c.traceparent, data = c.data
            WHERE namespace = ns AND key = c.key
            RETURNING * INTO l;
        END IF;
        IF amend.state = 'holds' AND c.set_data THEN
            UPDATE locksidecar.locks SET data = c.data WHERE namespace = ns AND key = c.key AND l.share_limit IS NULL;
            UPDATE locksidecar.shares SET data = c.data
            WHERE l.share_limit IS NOT NULL AND namespace = ns AND key = c.key AND token = l.token;
            l.data := c.data;
        END IF;
        IF amend.state = 'holds' AND c.share AND l.share_limit IS NULL THEN
            IF locksidecar.downgrade(l) THEN
                SELECT * INTO l FROM locksidecar.locks WHERE namespace = ns AND key = c.key;
                l := locksidecar.as_lock(l, l.token, NULL);
            ELSE
                amend.state := 'expired';
            END IF;
        END IF;

        RETURN QUERY
        SELECT c.ord, amend.state, l.token, l.acquired_at, greatest(s.expires_at, l.hold_until), clock_timestamp(),
            s.id, s.instance, s.pod, s.renewed, false, l.session, l.owner, l.data, l.traceparent,
            l.stopping, l.stop_reason, l.attempt_id,
            (SELECT count(*) FROM locksidecar.waiters q
                WHERE q.namespace = ns AND q.key = c.key AND q.id > l.served AND q.outcome IS NULL),
            coalesce(l.share_limit, CASE WHEN l.contended THEN locksidecar.waiting_limit(ns, c.key, l.served) END),
            CASE WHEN l.share_limit IS NOT NULL THEN locksidecar.slot_of(l) END,
            CASE WHEN l.share_limit IS NOT NULL THEN locksidecar.shown(ns, c.key, 1, false, l.token) END,
            amend.hints, amend.hint_instances, amend.ended;
    END LOOP;
END
$$;

-- withdraw frees what attempts of unknown outcome hold, and deletes their waiters. lock_key waits for an
-- attempt that is in flight (invariant 7). A bind:ttl lock that another instance was granted, too, stays (see
-- ask), as do a queue position and a min_hold of another instance. An own min_hold ends, because the grant was
-- not reported. lapsed: the lease of the grant had expired before.
CREATE OR REPLACE FUNCTION locksidecar.withdraw(
    ns text, not_after timestamptz, its_instance text, keys text[], attempts uuid[])
RETURNS TABLE (
    namespace text, key text, outcome text, expired uuid[], attempt_id uuid, lease_id uuid, instance text,
    token bigint, acquired_at timestamptz, expires_at timestamptz, hints uuid[], hint_instances text[],
    watched boolean, ended bigint, slot integer, now timestamptz, lapsed boolean)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    a record;
    l locksidecar.locks;
    its_lease locksidecar.leases;
    shared boolean;
    left_it boolean; -- a waiter or a share of the attempt is gone
BEGIN
    PERFORM locksidecar.in_history();
    FOR a IN
        SELECT * FROM unnest(keys, attempts) AS u (key, attempt_id) ORDER BY u.key COLLATE "C"
    LOOP
        l := locksidecar.lock_key(ns, a.key);
        PERFORM locksidecar.in_time(not_after);
        DELETE FROM locksidecar.waiters w WHERE w.namespace = ns AND w.attempt_id = a.attempt_id
        AND NOT EXISTS (SELECT FROM locksidecar.leases s WHERE s.id = w.lease_id AND s.instance <> its_instance);
        left_it := FOUND;
        shared := l.share_limit IS NOT NULL;
        IF shared THEN
            l := locksidecar.as_lock(l, NULL, a.attempt_id);
        END IF;
        SELECT * INTO its_lease FROM locksidecar.leases s WHERE s.id = l.lease_id;
        IF l.attempt_id <> a.attempt_id OR l.attempt_id IS NULL OR l.lease_id IS NULL OR l.lease_id = locksidecar.shared_lease()
            OR NOT its_lease.renewed AND (its_lease.repeated OR its_lease.instance <> its_instance)
            OR l.hold_until > clock_timestamp() AND l.hold_instance <> its_instance
        THEN
            NULL; -- nothing of this attempt is to be freed
        ELSIF shared THEN
            withdraw.lapsed := coalesce(its_lease.expires_at <= clock_timestamp(), true);
            PERFORM locksidecar.end_share(l, NOT withdraw.lapsed);
            left_it := true;
            withdraw.namespace := ns; withdraw.key := a.key; withdraw.outcome := 'ended'; withdraw.watched := l.watched;
            withdraw.ended := l.token; withdraw.now := clock_timestamp();
            RETURN NEXT;
        ELSE
            RETURN QUERY SELECT ns, a.key, h.*, clock_timestamp(),
                coalesce(its_lease.expires_at <= clock_timestamp(), true)
            FROM locksidecar.pass_on(l, its_lease, '') h;
            shared := EXISTS (SELECT FROM locksidecar.locks k WHERE k.namespace = ns AND k.key = a.key AND k.share_limit IS NOT NULL);
            left_it := true;
        END IF;
        -- Also if only a waiter was withdrawn, which may have blocked others, and after expired waiters
        -- of a key without shares were reaped.
        IF shared AND (left_it OR NOT EXISTS (SELECT FROM locksidecar.shares h WHERE h.namespace = ns AND h.key = a.key)) THEN
            RETURN QUERY SELECT ns, a.key, h.*, clock_timestamp(), true FROM locksidecar.pass_shares(ns, a.key, '') h;
        END IF;
    END LOOP;
END
$$;
