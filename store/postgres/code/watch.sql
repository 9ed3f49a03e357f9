-- watch records that the instance of a lease watches keys. It returns the watched keys, none if the lease is
-- dead. recall is the holder's instance if it may keep the key, and must learn that somebody watches. The lease is
-- locked as in signal. This replaces the instance's watches under other leases, and deletes those of dead leases.
CREATE OR REPLACE FUNCTION locksidecar.watch(ns text, not_after timestamptz, keys text[], its_lease uuid, its_instance text)
RETURNS TABLE (key text, recall text)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    k text;
    l locksidecar.locks;
BEGIN
    FOR k IN SELECT u.k FROM unnest(keys) AS u (k) ORDER BY u.k COLLATE "C" LOOP
        l := locksidecar.lock_key(ns, k);
        PERFORM locksidecar.in_time(not_after);
        PERFORM FROM locksidecar.leases
        WHERE id = its_lease AND expires_at > clock_timestamp() FOR KEY SHARE;
        CONTINUE WHEN NOT FOUND;
        IF NOT l.watched THEN
            UPDATE locksidecar.locks SET watched = true WHERE namespace = ns AND key = k;
        END IF;
        PERFORM locksidecar.drop_watchers(ns, k, its_instance, its_lease);
        INSERT INTO locksidecar.watchers (namespace, key, lease_id) VALUES (ns, k, its_lease) ON CONFLICT DO NOTHING;
        watch.key := k;
        watch.recall := (
            SELECT s.instance FROM locksidecar.leases s
            WHERE l.keepable AND s.id = l.lease_id AND s.instance <> its_instance AND s.expires_at > clock_timestamp());
        RETURN NEXT;
    END LOOP;
END
$$;

-- drop_watchers deletes the watches of an instance and of dead leases, except those of one lease.
-- The caller has locked the lock row.
CREATE OR REPLACE FUNCTION locksidecar.drop_watchers(ns text, k text, its_instance text, but uuid) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM locksidecar.watchers w
    WHERE w.namespace = ns AND w.key = k AND w.lease_id IS DISTINCT FROM but
    AND NOT EXISTS (SELECT FROM locksidecar.leases s WHERE s.id = w.lease_id AND s.instance <> its_instance);
END
$$;

-- unwatch deletes the watches of an instance and of dead leases. A key without watchers loses its mark, and its
-- changes no longer cause events.
CREATE OR REPLACE FUNCTION locksidecar.unwatch(not_after timestamptz, namespaces text[], keys text[], its_instance text)
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

-- channel is where an instance listens. channelOf in the sidecar computes the same name. The function is STABLE, as
-- convert_to is, so that PostgreSQL inlines it. Otherwise each statement would plan it again.
CREATE OR REPLACE FUNCTION locksidecar.channel(ns text, its_instance text) RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT 'locksidecar_' || left(encode(sha256(
        convert_to(ns, 'UTF8') || decode('00', 'hex') || convert_to(its_instance, 'UTF8')), 'hex'), 32)
$$;
