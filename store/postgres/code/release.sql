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

-- release does with rows what Op.Release in store/key/release.go does for the other stores, in fewer lines.
--
-- release frees locks, or passes on those with waiters, in the order of the keys. served are the waiters that the cohort
-- of the claimed grant has served: see drop_served. It is for claims that a plain
-- UPDATE did not take: see release_lock and release_share. If several waiters are granted shares, all but the first
-- have further rows without a state, as have the shares of a shared key. Such a key is settled once, after the last
-- of its claims, because that reads all of its shares.
CREATE OR REPLACE FUNCTION locksidecar.release(
    ns text, its_instance text, keys text[], tokens bigint[], leases uuid[], undelivered boolean[],
    successes boolean[], results text[], at_once boolean[], traceparents text[], served text[])
RETURNS TABLE (
    ord bigint, state text, token bigint, lease_id uuid, acquired_at timestamptz, traceparent text, handed locksidecar.hand_over)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    c record;
    l locksidecar.locks;
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
        IF l.share_limit IS NULL THEN
            r := locksidecar.release_lock(
                ns, c.key, l, its_instance, c.token, c.lease_id, c.undelivered, c.success, c.result, c.at_once, c.traceparent, c.served);
            release.token := l.token; release.acquired_at := l.acquired_at; release.traceparent := l.traceparent;
        ELSE
            r := locksidecar.release_share(
                l, its_instance, c.token, c.lease_id, c.undelivered, c.success, c.result, c.at_once, c.served);
            release.token := c.token; release.acquired_at := r.acquired_at; release.traceparent := r.traceparent;
        END IF;
        release.ord := c.ord; release.state := r.state; release.lease_id := l.lease_id; release.handed := r.handed;
        RETURN NEXT;
        IF r.settle THEN
            settling := c.ord; settled_by := c.traceparent;
        END IF;
        IF c.last AND settling IS NOT NULL THEN
            RETURN QUERY SELECT settling, NULL::text, NULL::bigint, locksidecar.shared_lease(), NULL::timestamptz, NULL::text, p
            FROM locksidecar.pass_shares(ns, c.key, settled_by) p;
            settling := NULL;
        END IF;
    END LOOP;
END
$$;

-- release_lock is release for a claim on a key that is not shared. It leaves an undelivered grant if another instance
-- was granted the lock, too: see ask. It also frees a lock whose lease has expired and is not dead, because a late
-- renewal could otherwise keep it.
--
-- A release with success marks the waiters with skip. They no longer wait, and the hand-off passes over them.
-- If the min_hold is not over, the lock is released but keeps the key (outcome hold_pending). at_once ends the
-- min_hold, for the sidecar that has or had the lease of the grant, because the grant was not reported to a
-- caller, or is broken. settle: the grant that follows is a share. Then the caller calls pass_shares. Without a lock
-- row, which a failover may have lost, l is null.
CREATE OR REPLACE FUNCTION locksidecar.release_lock(
    ns text, k text, l locksidecar.locks, its_instance text, claimed_token bigint, claimed_lease uuid, undelivered boolean,
    success boolean, result text, at_once boolean, by_release text, served text,
    OUT state text, OUT handed locksidecar.hand_over, OUT settle boolean)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    s locksidecar.leases;
    hold text; -- the min_hold of the grant: none, ended (at_once), or keeps (the key)
BEGIN
    SELECT * INTO s FROM locksidecar.leases WHERE id = l.lease_id;
    handed.watched := coalesce(l.watched, false); handed.now := clock_timestamp();

    -- Has the claimant the grant?
    release_lock.state := locksidecar.claim_status(
        CASE WHEN served = '' THEN claimed_token ELSE locksidecar.granted_token(l.token, claimed_token) END,
        claimed_lease, its_instance, l, s);
    IF undelivered AND release_lock.state = 'holds' AND (s.repeated OR s.instance <> its_instance) THEN
        release_lock.state := 'other'; -- another instance may have delivered it
    END IF;

    -- Some waiters leave the queue before the hand-off.
    IF served <> '' THEN
        PERFORM locksidecar.drop_served(ns, k, served);
    END IF;
    IF success AND release_lock.state = 'holds' AND l.contended THEN
        UPDATE locksidecar.waiters q SET outcome = 'success', result = release_lock.result
        WHERE q.namespace = ns AND q.key = k AND q.id > l.queue_after AND q.skip AND q.outcome IS NULL;
    END IF;

    -- The grant ends. What becomes of the key:
    --
    --   the claim   the min_hold   the key
    --   holds       keeps          stays without a holder (hold_pending), and an unrenewed lease ends
    --   holds       none, ended    is passed on, or is free
    --   expired     keeps          stays, but no longer under its lease, because a late renewal could keep it
    --   expired     ended          is passed on, or is free
    --   expired     none           the same, if the lease has a row or somebody waits; otherwise an acquire takes it
    --   other       any            does not change
    hold := CASE
        WHEN NOT coalesce(l.hold_until > clock_timestamp(), false) THEN 'none'
        WHEN at_once AND (release_lock.state = 'holds' OR (release_lock.state = 'expired' AND l.lease_id = claimed_lease)) THEN 'ended'
        ELSE 'keeps'
    END;
    IF hold = 'ended' THEN
        UPDATE locksidecar.locks SET hold_until = NULL WHERE namespace = ns AND key = k;
    END IF;
    IF release_lock.state = 'holds' AND hold = 'keeps' THEN
        handed.outcome := 'hold_pending';
        l.lease_id := gen_random_uuid(); l.attempt_id := NULL; l.stopping := NULL; l.stop_reason := NULL;
        PERFORM locksidecar.write_back(l);
        DELETE FROM locksidecar.leases WHERE id = s.id AND NOT renewed;
    ELSIF release_lock.state = 'expired' AND hold = 'keeps' THEN
        IF s.id IS NOT NULL THEN
            l.lease_id := gen_random_uuid();
            PERFORM locksidecar.write_back(l);
        END IF;
    ELSIF release_lock.state = 'holds' OR (release_lock.state = 'expired'
        AND (hold = 'ended' OR l.lease_id IS NOT NULL AND (s.id IS NOT NULL OR l.contended)))
    THEN
        handed := locksidecar.pass_on(l, s, by_release);
        IF handed.instance = its_instance THEN
            handed.cohort := locksidecar.cohort(ns, k);
        END IF;
    END IF;

    -- Some waiters must check again. If a min_hold keeps the key, the first ones do, because they expect a later end. If this release is a repeat,
    -- the hints of the first one may be lost with its answer. So the attempt that was granted since checks, and after a success those that skip.
    IF handed.outcome = 'hold_pending' OR (release_lock.state = 'released' AND hold = 'keeps') THEN
        SELECT f.hints, f.hint_instances INTO handed.hints, handed.hint_instances
        FROM locksidecar.first_waiters(ns, k, 100) f;
    ELSIF release_lock.state = 'unknown' AND claimed_token < l.token AND s.id IS NOT NULL AND l.attempt_id IS NOT NULL THEN
        handed.hints := ARRAY[l.attempt_id]; handed.hint_instances := ARRAY[s.instance];
    END IF;
    IF success AND release_lock.state IN ('holds', 'released', 'unknown') THEN
        SELECT array_agg(q.attempt_id) || handed.hints, array_agg(o.instance) || handed.hint_instances
        INTO handed.hints, handed.hint_instances
        FROM locksidecar.waiters q JOIN locksidecar.leases o ON o.id = q.lease_id
        WHERE q.namespace = ns AND q.key = k AND q.outcome IS NOT NULL;
    END IF;
    IF handed.outcome <> 'waiters_expired' THEN
        handed.ended := l.token;
    END IF;
    release_lock.settle := handed.slot IS NOT NULL;
END
$$;

-- withdraw frees what attempts of unknown outcome hold, and deletes their waiters. lock_key waits for an
-- attempt that is in flight (promise 9). A bind:ttl lock that another instance was granted, too, stays (see
-- ask), as do a queue position and a min_hold of another instance. An own min_hold ends, because the grant was
-- not reported. lapsed: the lease of the grant had expired before.
CREATE OR REPLACE FUNCTION locksidecar.withdraw(
    ns text, not_after timestamptz, its_instance text, keys text[], attempts uuid[])
RETURNS TABLE (key text, handed locksidecar.hand_over, lapsed boolean)
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
            withdraw.key := a.key; handed := NULL; handed.outcome := 'ended'; handed.watched := l.watched;
            handed.ended := l.token; handed.now := clock_timestamp();
            RETURN NEXT;
        ELSE
            withdraw.key := a.key; handed := locksidecar.pass_on(l, its_lease, '');
            withdraw.lapsed := coalesce(its_lease.expires_at <= clock_timestamp(), true);
            RETURN NEXT;
            shared := EXISTS (SELECT FROM locksidecar.locks k WHERE k.namespace = ns AND k.key = a.key AND k.share_limit IS NOT NULL);
            left_it := true;
        END IF;
        -- Also if only a waiter was withdrawn, which may have blocked others, and after expired waiters
        -- of a key without shares were reaped.
        IF shared AND (left_it OR NOT EXISTS (SELECT FROM locksidecar.shares h WHERE h.namespace = ns AND h.key = a.key)) THEN
            RETURN QUERY SELECT a.key, p, true FROM locksidecar.pass_shares(ns, a.key, '') p;
        END IF;
    END LOOP;
END
$$;
