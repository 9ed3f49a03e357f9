-- What holders are asked for, and who watches which keys. Both belong to leases, and
-- are forgotten when these are dead. A signal goes with its lease, in one transaction; a
-- watcher goes with the burial. The sweep deletes what was locked then.

-- +goose Up

-- Requests on their way to a session that holds a lock. Its sidecar deletes them when
-- it has heard.
CREATE TABLE locksidecar.signals (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    -- The lease on which the lock rides.
    lease_id     uuid NOT NULL,
    namespace    text COLLATE "C" NOT NULL,
    key          text COLLATE "C" NOT NULL,
    token        bigint NOT NULL,
    kind         text NOT NULL CHECK (kind IN ('stop', 'break')),
    reason       text,
    requested_at timestamptz NOT NULL
);
CREATE INDEX signals_lease ON locksidecar.signals (lease_id, key);

-- Leases are deleted in several places: the trigger sees to it that none of them leaves a signal
-- behind. An insertion has locked the lease FOR KEY SHARE before, so a deletion waits for it, and
-- the trigger, which looks afterwards, sees the row. It waits for no signal: a foreign key would,
-- and one that is locked would hold up all leases of a batch. A signal that is locked is being
-- acknowledged; if that fails, the sweep deletes it.
-- +goose StatementBegin
CREATE FUNCTION locksidecar.drop_signals() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM locksidecar.signals
    WHERE id IN (SELECT id FROM locksidecar.signals WHERE lease_id = OLD.id FOR UPDATE SKIP LOCKED);
    RETURN NULL;
END
$$;
-- +goose StatementEnd
CREATE TRIGGER drop_signals AFTER DELETE ON locksidecar.leases
FOR EACH ROW EXECUTE FUNCTION locksidecar.drop_signals();

-- Which instances hear what happens to a key: those of these leases. locks.watched says
-- that there are any.
CREATE TABLE locksidecar.watchers (
    namespace text COLLATE "C" NOT NULL,
    key       text COLLATE "C" NOT NULL,
    lease_id  uuid NOT NULL,
    PRIMARY KEY (namespace, key, lease_id)
);
CREATE INDEX watchers_lease ON locksidecar.watchers (lease_id);

-- signal asks the holders of keys for something, in the order of the keys. A stop is
-- noted in the lock row; its time is that of the first one. The session that holds the
-- lock is to be told (by the row in signals; the instance is returned for a hint), of a
-- stop only if that is new; and so are those who watch, unless the lock was released and
-- only a hold keeps it: then there is no holder. Who asks again, for another reason or not,
-- hears so: others need not be told each time. Nobody claims the lock of an unrenewed
-- lease, or of one that stands, in a way that could be interrupted: a break buries that
-- lease here, and returns it, for the key is to be handed off as after any burial. The
-- grant is not released then, so later claims of it hear that it ended (see judge).
--
-- The lease is locked FOR KEY SHARE, as in ask: a burial either waits, and then sees the
-- signal and drops it, or was before, and there is nobody to ask.
-- +goose StatementBegin
CREATE FUNCTION locksidecar.signal(
    ns text, not_after timestamptz, keys text[], tokens bigint[], kinds text[], reasons text[])
RETURNS TABLE (
    ord integer, held boolean, token bigint, watched boolean,
    stopping timestamptz, -- null: no stop was noted, or nothing about it is new
    tell text, again boolean, buried uuid,
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
        signal.stopping := NULL; signal.tell := NULL; signal.buried := NULL;
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
        IF signal.held AND s.renewed AND NOT s.standing THEN
            IF a.kind = 'break' OR signal.stopping IS NOT NULL THEN
                DELETE FROM locksidecar.signals g -- what was not heard yet is out of date
                WHERE g.lease_id = s.id AND g.namespace = ns AND g.key = a.key AND g.token = l.token AND g.kind = a.kind;
                INSERT INTO locksidecar.signals (lease_id, namespace, key, token, kind, reason, requested_at)
                VALUES (s.id, ns, a.key, l.token, a.kind, a.reason, coalesce(signal.stopping, clock_timestamp()));
                signal.tell := s.instance;
            ELSIF EXISTS (
                SELECT FROM locksidecar.signals g
                WHERE g.lease_id = s.id AND g.namespace = ns AND g.key = a.key AND g.token = l.token AND g.kind = a.kind)
            THEN -- a repeat, for the answer to the first was lost, and with it the hint
                signal.tell := s.instance;
            END IF;
            IF a.kind = 'break' AND s.hold_until > clock_timestamp() THEN
                -- Its sidecar may be gone: then the lease ends within its TTL, not with the hold.
                PERFORM locksidecar.end_hold(s);
                SELECT f.hints, f.hint_instances INTO signal.hints, signal.hint_instances
                FROM locksidecar.first_in_line(ns, a.key, 100) f;
            END IF;
        ELSIF signal.held AND a.kind = 'break' THEN
            DELETE FROM locksidecar.leases WHERE id = s.id;
            signal.buried := s.id;
        END IF;
        RETURN NEXT;
    END LOOP;
END
$$;
-- +goose StatementEnd

-- watch makes the instance that has a lease hear what happens to keys. It returns the
-- keys that it watches now; none when the lease is dead. The lease is locked as in
-- signal. What the instance watches under another lease is replaced, and what dead
-- leases left is dropped.
-- +goose StatementBegin
CREATE FUNCTION locksidecar.watch(ns text, not_after timestamptz, keys text[], its_lease uuid, its_instance text)
RETURNS SETOF text
LANGUAGE plpgsql AS $$
DECLARE
    k text;
    l locksidecar.locks;
BEGIN
    FOR k IN SELECT u.k FROM unnest(keys) AS u (k) ORDER BY u.k COLLATE "C" LOOP
        l := locksidecar.lock_key(ns, k);
        PERFORM locksidecar.in_time(not_after);
        PERFORM FROM locksidecar.leases
        WHERE id = its_lease AND expires_at > clock_timestamp() AND NOT standing FOR KEY SHARE;
        CONTINUE WHEN NOT FOUND;
        IF NOT l.watched THEN
            UPDATE locksidecar.locks SET watched = true WHERE namespace = ns AND key = k;
        END IF;
        PERFORM locksidecar.drop_watchers(ns, k, its_instance, its_lease);
        INSERT INTO locksidecar.watchers (namespace, key, lease_id) VALUES (ns, k, its_lease) ON CONFLICT DO NOTHING;
        RETURN NEXT k;
    END LOOP;
END
$$;
-- +goose StatementEnd

-- drop_watchers drops an instance's watches of a key, and those that dead leases left,
-- but for one lease's. The caller has locked the lock row.
CREATE FUNCTION locksidecar.drop_watchers(ns text, k text, its_instance text, but uuid) RETURNS void
LANGUAGE sql AS $$
    DELETE FROM locksidecar.watchers w
    WHERE w.namespace = ns AND w.key = k AND w.lease_id IS DISTINCT FROM but
    AND NOT EXISTS (SELECT FROM locksidecar.leases s WHERE s.id = w.lease_id AND s.instance <> its_instance)
$$;

-- unwatch ends an instance's watches of keys, and those that dead leases left. A key
-- that nobody watches any more is marked so: what happens to it costs nothing again.
-- +goose StatementBegin
CREATE FUNCTION locksidecar.unwatch(not_after timestamptz, namespaces text[], keys text[], its_instance text)
RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    a record;
BEGIN
    FOR a IN
        SELECT * FROM unnest(namespaces, keys) AS u (namespace, key)
        ORDER BY u.namespace COLLATE "C", u.key COLLATE "C"
    LOOP
        PERFORM FROM locksidecar.locks WHERE namespace = a.namespace AND key = a.key FOR UPDATE;
        PERFORM locksidecar.in_time(not_after);
        PERFORM locksidecar.drop_watchers(a.namespace, a.key, its_instance, NULL);
        UPDATE locksidecar.locks l SET watched = false
        WHERE l.namespace = a.namespace AND l.key = a.key AND l.watched
        AND NOT EXISTS (SELECT FROM locksidecar.watchers w WHERE w.namespace = a.namespace AND w.key = a.key);
    END LOOP;
END
$$;
-- +goose StatementEnd

-- channel is where an instance listens; channelOf in the sidecar is the same. It is STABLE,
-- for convert_to is: declared as more than that, it would not be made a part of the
-- statement that calls it, but be planned anew in each.
CREATE FUNCTION locksidecar.channel(ns text, its_instance text) RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT 'locksidecar_' || left(encode(sha256(
        convert_to(ns, 'UTF8') || '\x00'::bytea || convert_to(its_instance, 'UTF8')), 'hex'), 32)
$$;

UPDATE locksidecar.meta SET schema_version = 3, oldest_version = 3;
