-- signal asks the holders of keys for something, in the order of the keys. A stop is
-- noted in the lock row; its time is that of the first one. The session that holds the
-- lock is to be told (by the row in signals; the instance is returned for a hint), of a
-- stop only if that is new; and so are those who watch, unless the lock was released and
-- only a hold keeps it: then there is no holder. Who asks again, for another reason or not,
-- hears so: others need not be told each time. Nobody claims the lock of an unrenewed
-- lease, or of one that stands, in a way that could be interrupted: a break buries that
-- lease here, and returns it, for the key is to be handed off as after any burial. The
-- grant is not released then, so later claims of it hear that it ended (see claim_status).
--
-- The lease is locked FOR KEY SHARE, as in ask: a burial either waits, and then sees the
-- signal and drops it, or was before, and there is nobody to ask.
CREATE OR REPLACE FUNCTION locksidecar.signal(
    ns text, not_after timestamptz, keys text[], tokens bigint[], kinds text[], reasons text[])
RETURNS TABLE (
    ord bigint, held boolean, token bigint, watched boolean,
    stopping timestamptz, -- null: no stop was noted, or nothing about it is new
    notify text, again boolean, reaped uuid,
    hints uuid[], hint_instances text[]) -- who was told that the lock may end later
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    a record;
    l locksidecar.locks;
    s locksidecar.leases;
BEGIN
    PERFORM locksidecar.in_epoch();
    FOR a IN
        SELECT * FROM unnest(keys, tokens, kinds, reasons) WITH ORDINALITY AS u (key, token, kind, reason, ord)
        ORDER BY u.key COLLATE "C"
    LOOP
        SELECT * INTO l FROM locksidecar.locks WHERE namespace = ns AND key = a.key FOR UPDATE;
        PERFORM locksidecar.in_time(not_after);
        SELECT * INTO s FROM locksidecar.leases WHERE id = l.lease_id FOR KEY SHARE;
        signal.ord := a.ord; signal.token := l.token; signal.watched := l.watched AND l.grant_id IS NOT NULL;
        signal.stopping := NULL; signal.notify := NULL; signal.reaped := NULL;
        signal.hints := NULL; signal.hint_instances := NULL;
        signal.again := CASE a.kind WHEN 'stop' THEN l.stopping IS NOT NULL ELSE EXISTS (
            SELECT FROM locksidecar.signals g
            WHERE g.lease_id = s.id AND g.namespace = ns AND g.key = a.key AND g.token = l.token AND g.kind = a.kind) END;
        signal.held := s.id IS NOT NULL AND s.expires_at > clock_timestamp() AND a.token IN (0, l.token);
        IF signal.held AND a.kind = 'stop' THEN
            UPDATE locksidecar.locks
            SET stopping = coalesce(stopping, clock_timestamp()), stop_reason = a.reason
            WHERE namespace = ns AND key = a.key AND (stopping IS NULL OR stop_reason IS DISTINCT FROM a.reason)
            RETURNING stopping INTO signal.stopping;
        END IF;
        IF signal.held AND s.renewed AND NOT s.hold_pending THEN
            IF a.kind = 'break' OR signal.stopping IS NOT NULL THEN
                DELETE FROM locksidecar.signals g -- what was not heard yet is out of date
                WHERE g.lease_id = s.id AND g.namespace = ns AND g.key = a.key AND g.token = l.token AND g.kind = a.kind;
                INSERT INTO locksidecar.signals (lease_id, namespace, key, token, kind, reason, requested_at)
                VALUES (s.id, ns, a.key, l.token, a.kind, a.reason, coalesce(signal.stopping, clock_timestamp()));
                signal.notify := s.instance;
            ELSIF EXISTS (
                SELECT FROM locksidecar.signals g
                WHERE g.lease_id = s.id AND g.namespace = ns AND g.key = a.key AND g.token = l.token AND g.kind = a.kind)
            THEN -- a repeat, for the answer to the first was lost, and with it the hint
                signal.notify := s.instance;
            END IF;
            IF a.kind = 'break' AND s.hold_until > clock_timestamp() THEN
                -- Its sidecar may be gone: then the lease ends within its TTL, not with the hold.
                PERFORM locksidecar.end_hold(s);
                SELECT f.hints, f.hint_instances INTO signal.hints, signal.hint_instances
                FROM locksidecar.first_waiters(ns, a.key, 100) f;
            END IF;
        ELSIF signal.held AND a.kind = 'break' THEN
            DELETE FROM locksidecar.leases WHERE id = s.id;
            signal.reaped := s.id;
        END IF;
        RETURN NEXT;
    END LOOP;
END
$$;
