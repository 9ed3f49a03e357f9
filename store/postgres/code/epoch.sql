-- here names the server that answers, so that another one is told from it, and the mark of
-- its meta. By its timeline, which each promotion and each recovery begins anew; or by when it
-- was started, which no two servers share, and which any role may ask: a primary that was
-- merely restarted then looks like another server. By nothing: no other server is ever noticed.
-- A branch of plpgsql that is not taken needs no right to what it would call.
CREATE OR REPLACE FUNCTION locksidecar.here(source text, mark text) RETURNS text
LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF source = 'timeline' THEN
        RETURN substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8) || mark;
    ELSIF source = 'server' THEN
        RETURN (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint || mark;
    END IF;
    RETURN mark;
END
$$;

-- choose_epoch_source is for a new schema. The source is the first that the server answers. Amazon
-- Aurora refuses its timeline, but for wal_level = logical, and whether a failover changes it there
-- is not known.
CREATE OR REPLACE FUNCTION locksidecar.choose_epoch_source() RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    candidate text;
BEGIN
    FOREACH candidate IN ARRAY ARRAY['timeline', 'server', 'none'] LOOP
        CONTINUE WHEN candidate = 'timeline' AND EXISTS (SELECT FROM pg_proc WHERE proname = 'aurora_version');
        BEGIN
            UPDATE locksidecar.meta SET source = candidate, epoch = locksidecar.here(candidate, mark);
            EXIT;
        EXCEPTION WHEN OTHERS THEN
            RAISE LOG 'locksidecar: the server does not answer what epochs by % need: %', candidate, SQLERRM;
        END;
    END LOOP;
END
$$;

-- in_epoch is true, or fails with LS001 when the server is another one than that
-- which granted last, or these tables are: a standby was promoted, or a backup restored, and
-- what they know may be older than what was told. Then new_epoch comes first. Statements that grant, and those that
-- bury expired leases, ask it.
CREATE OR REPLACE FUNCTION locksidecar.in_epoch() RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    IF (SELECT epoch = locksidecar.here(source, mark) FROM locksidecar.meta) THEN
        RETURN true;
    END IF;
    RAISE EXCEPTION 'the server was promoted, or restored, since it last granted a lock' USING ERRCODE = 'LS001';
END
$$;

-- history names what this server grants, once it may grant; or it fails as in_epoch does.
CREATE OR REPLACE FUNCTION locksidecar.history() RETURNS uuid
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM locksidecar.in_epoch();
    RETURN (SELECT m.history FROM locksidecar.meta m);
END
$$;

-- new_epoch begins to grant on a server that was promoted, or restored. No lease ends before its
-- holder can have renewed it: the last renewal may be missing, and this server's
-- clock is another one. (The lease of a bind:ttl lock is not renewed; one that would
-- end about now gets a minute, for the clock.) A lease that somebody has locked is
-- being renewed, or it has to do without: all locks of all pods wait for this. One that
-- stands has no holder who could be wrong about it. Then
-- tokens jump, for a few that were granted may not have reached this server: far
-- beyond what can be granted meanwhile, and also beyond where another standby that
-- was promoted before may have jumped to. It returns whether there was anything to
-- do, and fails with LS004 where a later copy of the database was seen: see outdate. It may do what
-- the sidecar's role may not: set the sequence.
CREATE OR REPLACE FUNCTION locksidecar.new_epoch() RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    here text;
    known text;
    since timestamptz;
    later boolean;
    first bigint;
BEGIN
    SELECT epoch, locksidecar.here(source, mark), began, outdated INTO known, here, since, later
    FROM locksidecar.meta FOR UPDATE;
    IF NOT FOUND THEN -- else each statement would come here, and tokens jump each time
        RAISE EXCEPTION 'the table locksidecar.meta is empty; it must have one row';
    END IF;
    IF later THEN
        RAISE EXCEPTION 'the server is an old primary: a sidecar has seen a later one' USING ERRCODE = 'LS004';
    END IF;
    IF known = here THEN
        RETURN false;
    END IF;
    WITH due AS (
        SELECT id FROM locksidecar.leases
        WHERE NOT hold_pending AND (renewed
            OR expires_at BETWEEN clock_timestamp() - interval '1 minute' AND clock_timestamp() + interval '1 minute')
        ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
    )
    UPDATE locksidecar.leases l
    SET expires_at = greatest(expires_at,
        clock_timestamp() + CASE WHEN renewed THEN ttl ELSE least(ttl, interval '1 minute') END)
    FROM due WHERE l.id = due.id;
    -- 2^20 for each second since 2020: no server grants a million locks a second, and 2^53, the
    -- last number that readers of JSON know exactly, is 270 years away. Soon after another jump
    -- tokens are ahead of that clock, so that two standbys that know nothing of each other would jump to the
    -- same; but they are not promoted in the same moment of this history.
    first := greatest(
        (SELECT last_value FROM locksidecar.tokens) + (1 << 30)
            + floor(extract(epoch FROM greatest(clock_timestamp() - since, interval '0')) * (1 << 20))::bigint,
        floor(extract(epoch FROM clock_timestamp() - timestamptz '2020-01-01 00:00:00Z'))::bigint << 20);
    UPDATE locksidecar.meta
    SET epoch = here, history = gen_random_uuid(), began = clock_timestamp(), began_token = first;
    PERFORM setval('locksidecar.tokens', first); -- last, for a rollback does not take it back
    RETURN true;
END
$$;

-- restored begins a new epoch, for an operator who has put an older copy of the server's
-- files in its place, for nothing here shows that; or who lets a primary that was left serve
-- again. It returns a token that is greater than all
-- that were granted; later ones are greater still. Sidecars' roles may not write meta.
CREATE OR REPLACE FUNCTION locksidecar.restored() RETURNS bigint
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE locksidecar.meta SET one = true, outdated = false; -- which gives it another mark
    PERFORM locksidecar.new_epoch();
    RETURN nextval('locksidecar.tokens');
END
$$;

-- outdate is for who has seen a later copy of this database than this one, whose epoch began
-- with the token known: nothing is granted here any more, neither to those who know of no
-- other, until restored. It may do what the sidecar's role may not: write meta.
CREATE OR REPLACE FUNCTION locksidecar.outdate(known bigint, later bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE locksidecar.meta SET outdated = true, epoch = ''
    WHERE NOT outdated AND began_token = known AND known < later;
END
$$;

-- use_epoch_source changes by what servers are told from each other, for an operator: 'timeline',
-- 'server' or 'none'. It begins a new epoch, and fails where the server does not answer that.
-- Sidecars' roles may not write meta.
CREATE OR REPLACE FUNCTION locksidecar.use_epoch_source(named text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE locksidecar.meta SET source = named;
    PERFORM locksidecar.new_epoch();
END
$$;

-- replicated is true, and makes the statement's end wait for a synchronous standby, where
-- there is one, although it only reads: for all that was committed before (invariant 4). A
-- grant is there for all to see when nobody has confirmed it, once somebody has cancelled
-- the wait for that; and on a server that was cut off from its standby, which may be the
-- primary by now, it must not be told. A message in the log of which nobody hears makes
-- the transaction one that writes.
CREATE OR REPLACE FUNCTION locksidecar.replicated() RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('synchronous_standby_names') <> '' THEN
        PERFORM pg_logical_emit_message(true, 'locksidecar', '');
    END IF;
    RETURN true;
END
$$;

-- in_time is true, or fails with LS002 when a statement comes so late that its
-- sidecar has given it up: it lay in a buffer. (Invariant 7: what was undone must
-- not come after.)
CREATE OR REPLACE FUNCTION locksidecar.in_time(not_after timestamptz) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    IF clock_timestamp() < not_after THEN
        RETURN true;
    END IF;
    RAISE EXCEPTION 'the statement came too late' USING ERRCODE = 'LS002';
END
$$;

-- may_take is true, or fails with LS003 when a sidecar was built for an older schema than
-- one that may take locks here. It may go on to renew and to release what it has.
CREATE OR REPLACE FUNCTION locksidecar.may_take(built_for integer) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    IF (SELECT oldest_version FROM locksidecar.meta) <= built_for THEN
        RETURN true;
    END IF;
    RAISE EXCEPTION 'the sidecar is too old for the schema' USING ERRCODE = 'LS003';
END
$$;
