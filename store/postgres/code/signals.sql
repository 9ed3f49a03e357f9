-- signal sends requests to the holders of keys, in the order of the keys. A stop is noted in the lock row with
-- the time of the first one. A row in signals is for the session's sidecar, and its instance is returned for a
-- hint (notify), for a stop only if it is new. Watchers are notified of a new stop, too, unless the lock was
-- released and only its min_hold is pending. again: the same request was sent before, perhaps with another
-- reason, so others need not be notified each time.
--
-- The lock of an unrenewed lease, or with a pending min_hold, has no session that could give it up. So a break
-- deletes that lease and returns its id (reaped), and the caller hands the key off. The grant counts as ended,
-- not as released (see claim_status). A break always ends the min_hold, so the lock is free when the lease
-- ends, even if its sidecar is gone.
--
-- A key that is kept for its waiters in a quiet time (hold_quiet) has no holder.
--
-- A shared key has a row for each holder that is meant. After a break of one, the caller settles the key.
--
-- The lease is locked FOR KEY SHARE, as in ask: a reap either waits, and then deletes the signal, or it came
-- before and there is no holder.
CREATE OR REPLACE FUNCTION locksidecar.signal(
    ns text, not_after timestamptz, keys text[], tokens bigint[], kinds text[], reasons text[])
RETURNS TABLE (
    ord bigint, held boolean, token bigint, watched boolean,
    stopping timestamptz, -- null: no stop was noted, or nothing about it is new
    notify text, again boolean, reaped uuid,
    hints uuid[], hint_instances text[]) -- waiters that know a later end
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    a record;
    whole locksidecar.locks;
    l locksidecar.locks; -- this, or a share
    s locksidecar.leases;
    on_hold boolean; -- a min_hold keeps the key
    its_token bigint;
BEGIN
    PERFORM locksidecar.in_history();
    FOR a IN
        SELECT * FROM unnest(keys, tokens, kinds, reasons) WITH ORDINALITY AS u (key, token, kind, reason, ord)
        ORDER BY u.key COLLATE "C"
    LOOP
        SELECT * INTO whole FROM locksidecar.locks WHERE namespace = ns AND key = a.key FOR UPDATE;
        PERFORM locksidecar.in_time(not_after);
        FOR its_token IN
            SELECT 0 WHERE whole.share_limit IS NULL
            UNION ALL
            SELECT h.token FROM locksidecar.shares h
            WHERE whole.share_limit IS NOT NULL AND h.namespace = ns AND h.key = a.key AND a.token IN (0, h.token)
            ORDER BY 1
        LOOP
            l := whole;
            IF whole.share_limit IS NOT NULL THEN
                l := locksidecar.as_lock(whole, its_token, NULL);
            END IF;
            SELECT * INTO s FROM locksidecar.leases WHERE id = l.lease_id FOR KEY SHARE;
            signal.ord := a.ord; signal.token := l.token; signal.watched := l.watched AND l.attempt_id IS NOT NULL;
            signal.stopping := NULL; signal.notify := NULL; signal.reaped := NULL;
            signal.hints := NULL; signal.hint_instances := NULL;
            signal.again := CASE a.kind WHEN 'stop' THEN l.stopping IS NOT NULL ELSE EXISTS (
                SELECT FROM locksidecar.signals g
                WHERE g.lease_id = s.id AND g.namespace = ns AND g.key = a.key AND g.token = l.token AND g.kind = a.kind) END;
            on_hold := coalesce(l.hold_until > clock_timestamp(), false);
            signal.held := (on_hold AND l.hold_instance IS NOT NULL OR coalesce(s.expires_at > clock_timestamp(), false))
                AND a.token IN (0, l.token);
            IF signal.held AND a.kind = 'stop' AND (l.stopping IS NULL OR l.stop_reason IS DISTINCT FROM a.reason) THEN
                signal.stopping := coalesce(l.stopping, clock_timestamp());
                l.stopping := signal.stopping; l.stop_reason := a.reason;
                PERFORM locksidecar.write_back(l);
            END IF;
            IF signal.held AND on_hold AND a.kind = 'break' THEN
                l.hold_until := NULL;
                PERFORM locksidecar.write_back(l);
                SELECT f.hints, f.hint_instances INTO signal.hints, signal.hint_instances
                FROM locksidecar.first_waiters(ns, a.key, 100) f;
            END IF;
            IF signal.held AND s.renewed THEN
                IF a.kind = 'break' OR signal.stopping IS NOT NULL THEN
                    DELETE FROM locksidecar.signals g -- a newer one replaces it
                    WHERE g.lease_id = s.id AND g.namespace = ns AND g.key = a.key AND g.token = l.token AND g.kind = a.kind;
                    INSERT INTO locksidecar.signals (lease_id, namespace, key, token, kind, reason, requested_at)
                    VALUES (s.id, ns, a.key, l.token, a.kind, a.reason, coalesce(signal.stopping, clock_timestamp()));
                    signal.notify := s.instance;
                ELSIF EXISTS (
                    SELECT FROM locksidecar.signals g
                    WHERE g.lease_id = s.id AND g.namespace = ns AND g.key = a.key AND g.token = l.token AND g.kind = a.kind)
                THEN -- a repeat: the answer was lost, and perhaps the hint
                    signal.notify := s.instance;
                END IF;
            ELSIF signal.held AND a.kind = 'break' THEN
                DELETE FROM locksidecar.leases WHERE id = s.id;
                signal.reaped := CASE WHEN l.share_limit IS NULL THEN l.lease_id ELSE locksidecar.shared_lease() END;
            END IF;
            RETURN NEXT;
        END LOOP;
    END LOOP;
END
$$;
