-- move moves locks and waiters from one lease of an instance to another: see Failover in doc.go. A lock is
-- named by its token, a waiter and its later lock by the attempt id. The grant, its token and the queue
-- position do not change. States: holds (it is under the new lease now, perhaps since an earlier call), or as
-- in claim_status; expired also means that the new lease is not alive, and other that it is under a third
-- lease, because a later move came first.
--
-- The lock row is locked first, also for a waiter, so no hand-off is in flight. Both leases are locked FOR KEY
-- SHARE. A reap of either one waits for this and sees the moved row, or it came before, and nothing is moved
-- from or to a dead lease. An expired lease counts as dead here, because others may be about to reap it.
--
-- Signals follow the lock. A skipped waiter moves, too, because its sidecar has not read the result.
CREATE OR REPLACE FUNCTION locksidecar.move(
    ns text, not_after timestamptz, its_instance text, old_lease uuid, new_lease uuid, keys text[], tokens bigint[], attempts uuid[])
RETURNS TABLE (ord bigint, state text)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    a record;
    l locksidecar.locks;
    s locksidecar.leases;
    w locksidecar.waiters;
BEGIN
    PERFORM locksidecar.in_history();
    FOR a IN
        SELECT * FROM unnest(keys, tokens, attempts) WITH ORDINALITY AS u (key, token, attempt_id, ord)
        ORDER BY u.key COLLATE "C", u.ord
    LOOP
        move.ord := a.ord;
        SELECT * INTO l FROM locksidecar.locks WHERE namespace = ns AND key = a.key FOR UPDATE;
        PERFORM locksidecar.in_time(not_after);
        PERFORM FROM locksidecar.leases
        WHERE id = new_lease AND expires_at > clock_timestamp() FOR KEY SHARE;
        IF NOT FOUND THEN
            move.state := 'expired';
            RETURN NEXT;
            CONTINUE;
        END IF;
        SELECT * INTO w FROM locksidecar.waiters q WHERE q.namespace = ns AND q.attempt_id = a.attempt_id;
        IF l.share_limit IS NOT NULL THEN
            l := locksidecar.as_lock(l, a.token, a.attempt_id);
        END IF;
        SELECT * INTO s FROM locksidecar.leases WHERE id = coalesce(w.lease_id, l.lease_id) FOR KEY SHARE;
        IF w.id IS NULL THEN
            move.state := locksidecar.claim_status(
                CASE WHEN l.attempt_id = a.attempt_id THEN l.token WHEN l.share_limit IS NOT NULL THEN a.token ELSE locksidecar.granted_token(l.token, a.token) END, new_lease, its_instance, l, s);
        ELSE
            move.state := CASE WHEN s.expires_at > clock_timestamp() THEN 'holds' ELSE 'expired' END;
        END IF;
        IF move.state = 'holds' AND s.id NOT IN (old_lease, new_lease) THEN
            move.state := 'other';
        END IF;
        IF move.state = 'holds' AND s.id = old_lease THEN
            UPDATE locksidecar.waiters q SET lease_id = new_lease WHERE q.id = w.id;
            IF w.id IS NULL THEN
                l.lease_id := new_lease;
                PERFORM locksidecar.write_back(l);
                UPDATE locksidecar.signals g SET lease_id = new_lease
                WHERE g.lease_id = s.id AND g.namespace = ns AND g.key = a.key AND g.token = l.token;
            END IF;
        END IF;
        RETURN NEXT;
    END LOOP;
END
$$;
