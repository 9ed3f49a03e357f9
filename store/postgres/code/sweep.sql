-- sweep_step makes one step of the sweep, if one is due and no other session makes it. It reads a few pages at
-- a time until its time budget is spent. It skips locked rows, and never waits.
--
-- It deletes leases that expired before expired_for, and keys that became free before free_for. It
-- returns the work for the caller after the commit: the deleted leases, keys that are held under
-- missing leases and that no min_hold keeps, and keys with the mark of a watch and without a watcher.
--
-- A deleted row had a smaller token than meta.first_token, so the next row of its key gets a greater one, even
-- if the clock is set back (promise 3). Each lap raises first_token to the token of free_for ago. free_for is
-- far longer than any statement, because one in flight may have read the clock and first_token. Each DELETE
-- decides by the row that it has locked.
--
-- A lease is inserted before the first lock under it. So if a later statement does not find a lock's lease, it
-- was deleted. The caller hands the key off by the id of that lease, never because "no living lease" holds it
-- (promise 1).
--
-- The commit does not wait for the disk: after a crash the next lap finds the rows again.
CREATE OR REPLACE FUNCTION locksidecar.sweep_step(
    expired_for interval, free_for interval, rest interval, budget interval,
    OUT due boolean, OUT begins boolean, OUT ends boolean, OUT pause interval,
    OUT dead uuid[], OUT dangling_namespaces text[], OUT dangling_keys text[], OUT dangling_leases uuid[],
    OUT unwatched_namespaces text[], OUT unwatched_keys text[])
LANGUAGE plpgsql AS $$
DECLARE
    chunk CONSTANT integer := 32; -- pages at a time
    most CONSTANT integer := 1000; -- about so many rows for the caller in one step
    since CONSTANT timestamptz := clock_timestamp();
    at locksidecar.sweep;
    pages bigint;
    here tid;
    behind tid;
    seen record;
    gone uuid[];
    first bigint; -- no row with this token, or a greater one, is deleted
BEGIN
    begins := false; ends := false; pause := '0'; dead := '{}';
    dangling_namespaces := '{}'; dangling_keys := '{}'; dangling_leases := '{}';
    unwatched_namespaces := '{}'; unwatched_keys := '{}';
    SELECT * INTO at FROM locksidecar.sweep
    WHERE due_at <= since OR due_at > since + interval '1 hour' -- the clock went back
    FOR UPDATE SKIP LOCKED;
    due := FOUND;
    IF NOT due THEN
        INSERT INTO locksidecar.sweep (one) -- a restore can leave the row out
        SELECT true WHERE NOT EXISTS (SELECT FROM locksidecar.sweep) ON CONFLICT DO NOTHING;
        RETURN;
    END IF;
    PERFORM locksidecar.in_history();
    PERFORM set_config('synchronous_commit', 'off', true);
    IF at.walks = 'leases' AND at.page = 0 THEN
        begins := true; at.began := since;
        PERFORM locksidecar.raise_first_token(free_for);
    END IF;
    pages := pg_relation_size(('locksidecar.' || at.walks)::regclass) / current_setting('block_size')::integer;
    SELECT first_token INTO first FROM locksidecar.meta;
    LOOP
        IF at.page >= pages THEN
            ends := at.walks = 'locks';
            at.walks := CASE WHEN ends THEN 'leases' ELSE 'locks' END; at.page := 0;
            EXIT WHEN ends;
            pages := pg_relation_size('locksidecar.locks') / current_setting('block_size')::integer;
            CONTINUE;
        END IF;
        here := format('(%s,0)', at.page)::tid; behind := format('(%s,0)', at.page + chunk)::tid;
        at.page := at.page + chunk;
        IF at.walks = 'leases' THEN
            WITH gone AS (
                DELETE FROM locksidecar.leases WHERE ctid = ANY (ARRAY(
                    SELECT s.ctid FROM locksidecar.leases s
                    WHERE s.ctid >= here AND s.ctid < behind AND s.expires_at < clock_timestamp() - expired_for
                    FOR UPDATE SKIP LOCKED))
                RETURNING id
            )
            SELECT dead || array_agg(id) INTO dead FROM gone;
        ELSE
            -- Most pages need only this. It groups by lease, because many locks are held under one.
            SELECT array_agg(h.lease_id) AS leases, bool_or(h.watched) AS watched, bool_or(h.forgotten) AS forgotten INTO seen
            FROM (
                SELECT lease_id, bool_or(watched) AS watched,
                    bool_or(lease_id IS NULL AND freed_at < clock_timestamp() - free_for AND token < first - 255) AS forgotten
                FROM locksidecar.locks WHERE ctid >= here AND ctid < behind GROUP BY lease_id
            ) h;
            IF seen.forgotten THEN
                DELETE FROM locksidecar.locks WHERE ctid = ANY (ARRAY(
                    SELECT ctid FROM locksidecar.locks
                    WHERE ctid >= here AND ctid < behind AND lease_id IS NULL
                    AND NOT contended AND NOT watched AND freed_at < clock_timestamp() - free_for AND token < first - 255
                    FOR UPDATE SKIP LOCKED));
            END IF;
            gone := ARRAY(
                SELECT u.id FROM unnest(seen.leases) AS u (id)
                WHERE u.id IS NOT NULL AND (SELECT true FROM locksidecar.leases WHERE id = u.id) IS NULL);
            IF cardinality(gone) > 0 THEN
                SELECT dangling_namespaces || array_agg(namespace), dangling_keys || array_agg(key), dangling_leases || array_agg(lease_id)
                INTO dangling_namespaces, dangling_keys, dangling_leases
                FROM locksidecar.locks WHERE ctid >= here AND ctid < behind AND lease_id = ANY (gone)
                AND (hold_until > clock_timestamp()) IS NOT TRUE
                AND (lease_id <> locksidecar.shared_lease() OR (SELECT t.settle FROM locksidecar.look(namespace, key) t));
            END IF;
            IF seen.watched THEN
                SELECT unwatched_namespaces || array_agg(l.namespace), unwatched_keys || array_agg(l.key)
                INTO unwatched_namespaces, unwatched_keys
                FROM locksidecar.locks l WHERE l.ctid >= here AND l.ctid < behind AND l.watched
                AND (SELECT true FROM locksidecar.watchers w WHERE w.namespace = l.namespace AND w.key = l.key LIMIT 1) IS NULL;
            END IF;
        END IF;
        EXIT WHEN clock_timestamp() >= since + budget
            OR cardinality(dead) + cardinality(dangling_keys) + cardinality(unwatched_keys) >= most;
    END LOOP;
    -- The sweep takes at most a quarter of the time.
    pause := 3 * (clock_timestamp() - since);
    UPDATE locksidecar.sweep s SET walks = at.walks, page = at.page, began = at.began,
        due_at = CASE WHEN ends THEN greatest(at.began + rest, clock_timestamp()) ELSE clock_timestamp() + pause END;
END
$$;
