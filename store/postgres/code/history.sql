-- here names this server, with the mark of its meta: by the timeline, which changes with each promotion and
-- recovery; by the time of its start, which every role may read, but which a restart also changes; or not at
-- all, so that failovers are not noticed. plpgsql needs no rights to the functions of a branch that does not
-- run.
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

-- token_at is the token of a time: the microseconds since 1970. The tokens of a key grow with its row. The
-- clock gives the first token of a row, but at least meta.first_token. Tokens of deleted rows (see sweep_step)
-- and of other servers (see new_history) are smaller. A row gets ahead of the clock only if the server grants its
-- key 3,906 times a second, because each grant reserves 256 tokens. Then the sweep keeps the row. 2^53,
-- the last integer that JSON readers represent exactly, is 228 years away.
-- The function is STABLE, as date_part is, so it is inlined.
CREATE OR REPLACE FUNCTION locksidecar.token_at(at timestamptz) RETURNS bigint
LANGUAGE sql STABLE AS $$
    SELECT floor(date_part('epoch', at) * 1000000)::bigint
$$;

-- choose_history_source is for a new schema. It takes the first source that the server allows. Tokens begin by
-- the clock, so they grow even if a schema was lost and is made again. Amazon Aurora refuses its timeline
-- unless wal_level is logical, and it is unknown whether a failover changes it there.
CREATE OR REPLACE FUNCTION locksidecar.choose_history_source() RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    candidate text;
BEGIN
    FOREACH candidate IN ARRAY ARRAY['timeline', 'server', 'none'] LOOP
        CONTINUE WHEN candidate = 'timeline' AND EXISTS (SELECT FROM pg_proc WHERE proname = 'aurora_version');
        BEGIN
            UPDATE locksidecar.meta SET source = candidate, server = locksidecar.here(candidate, mark);
            EXIT;
        EXCEPTION WHEN OTHERS THEN
            RAISE LOG 'locksidecar: the server does not answer what histories by % need: %', candidate, SQLERRM;
        END;
    END LOOP;
    UPDATE locksidecar.meta SET began_token = locksidecar.token_at(began), first_token = locksidecar.token_at(began);
END
$$;

-- in_history is true on the server that granted last, with the tables as they were. Otherwise it fails with
-- LS001: a promoted or restored server may have older data than was confirmed, so new_history comes first.
-- Statements that grant locks or reap expired leases call in_history. It is STABLE, so it judges what its statement sees:
-- not the history that new_history has begun since, beside leases as they were before.
CREATE OR REPLACE FUNCTION locksidecar.in_history() RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF (SELECT server = locksidecar.here(source, mark) FROM locksidecar.meta) THEN
        RETURN true;
    END IF;
    RAISE EXCEPTION 'the server was promoted, or restored, since it last granted a lock' USING ERRCODE = 'LS001';
END
$$;

-- history names the history of this server, or fails as in_history does.
CREATE OR REPLACE FUNCTION locksidecar.history() RETURNS uuid
LANGUAGE plpgsql STABLE AS $$
BEGIN
    PERFORM locksidecar.in_history();
    RETURN (SELECT m.history FROM locksidecar.meta m);
END
$$;

-- new_history begins a history on a server that was promoted or restored. It returns false if the history has
-- already begun. It fails with LS004 if a later copy of the database was seen: see outdate. It has the owner's
-- rights, because sidecars may not write meta.
--
-- Each lease gets its TTL once more, because its last renewal may be missing, and this server has another
-- clock. A bind:ttl lease that would end about now gets a minute. A locked lease is skipped, because all
-- sidecars wait for this function.
--
-- From then on, no token is smaller than began_token, which is greater than all tokens that may be missing
-- here, and than that of another standby.
--
-- A failover to an asynchronous standby can have forgotten grants whose holders still believe in them, for less
-- than the TTL since the old server's last answer. So nothing is granted for the longest TTL in use: the quiet
-- time. The TTLs are those of the leases that are known here, and those that lease_open has noted in
-- quiet_ttls. If there are none, no such grant can be missing.
CREATE OR REPLACE FUNCTION locksidecar.new_history() RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    here text;
    -- The greatest assumed difference between the clocks of two servers: 64 seconds.
    apart CONSTANT bigint := 64000000::bigint;
    known text;
    since timestamptz;
    before bigint;
    later boolean;
    first bigint;
    raised bigint;
BEGIN
    SELECT server, locksidecar.here(source, mark), began, began_token, outdated, first_token INTO known, here, since, before, later, raised
    FROM locksidecar.meta FOR UPDATE;
    IF NOT FOUND THEN -- otherwise each statement would call new_history, and prolong the leases each time
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
        WHERE renewed
            OR expires_at BETWEEN clock_timestamp() - interval '1 minute' AND clock_timestamp() + interval '1 minute'
        ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
    )
    UPDATE locksidecar.leases l
    SET expires_at = greatest(expires_at,
        clock_timestamp() + CASE WHEN renewed THEN ttl ELSE least(ttl, interval '1 minute') END)
    FROM due WHERE l.id = due.id;
    -- Soon after another history, its began_token is ahead of the clock. Then the age of that history makes the
    -- values of two standbys differ, because they are not promoted at the same moment. The same holds if first_token
    -- was raised ahead of the clock: see Store.RaiseTokens.
    first := locksidecar.token_at(clock_timestamp());
    before := greatest(before, CASE WHEN raised > first THEN raised END);
    first := apart + greatest(first, before + greatest(first - locksidecar.token_at(since), 0));
    UPDATE locksidecar.meta
    SET server = here, history = gen_random_uuid(), began = clock_timestamp(),
        began_token = first, first_token = greatest(first_token, first),
        quiet_until = greatest(quiet_until, clock_timestamp() + greatest(
            (SELECT max(ttl) FROM locksidecar.quiet_ttls),
            (SELECT max(ttl) FROM locksidecar.leases WHERE renewed AND quiet)));
    RETURN true;
END
$$;

-- end_quiet ends the quiet time, for an operator who knows that no sidecar believes in a forgotten grant: all
-- sidecars that used the previous server have reached this one, or have ended. Sidecars' roles may not write
-- meta.
CREATE OR REPLACE FUNCTION locksidecar.end_quiet() RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    over timestamptz;
BEGIN
    SELECT quiet_until INTO over FROM locksidecar.meta FOR UPDATE;
    UPDATE locksidecar.meta SET quiet_until = '-infinity';
    UPDATE locksidecar.locks SET hold_until = clock_timestamp() WHERE hold_until = over;
END
$$;

-- failover_forgets reports whether a failover may forget grants, so that a quiet time must follow: by the
-- sidecar's setting ('quiet', 'quick'), or otherwise if no synchronous standby is configured.
CREATE OR REPLACE FUNCTION locksidecar.failover_forgets(told text) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT told = 'quiet' OR told <> 'quick' AND current_setting('synchronous_standby_names') = ''
$$;

-- raise_first_token lets the sweep delete rows whose tokens are smaller than that of the given time ago. It
-- does not wait. It has the owner's rights, because sidecars may not write meta.
CREATE OR REPLACE FUNCTION locksidecar.raise_first_token(ago interval) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    past CONSTANT bigint := locksidecar.token_at(clock_timestamp() - greatest(ago, interval '0'));
BEGIN
    UPDATE locksidecar.meta SET first_token = past
    WHERE one IN (SELECT one FROM locksidecar.meta WHERE first_token < past FOR NO KEY UPDATE SKIP LOCKED);
END
$$;

-- restored begins a new history for an operator who has restored an older copy of the server's files, which
-- cannot be noticed otherwise, or makes an old primary serve again. It returns a token that is greater than all
-- earlier ones. Later tokens are not smaller. Sidecars' roles may not write meta.
CREATE OR REPLACE FUNCTION locksidecar.restored() RETURNS bigint
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE locksidecar.meta SET one = true, outdated = false; -- makes another mark
    PERFORM locksidecar.new_history();
    RETURN (SELECT began_token FROM locksidecar.meta);
END
$$;

-- outdate is called by a sidecar that knows a later copy of this database. The token known began this copy's
-- history. After that, nothing is granted here until restored, not even to sidecars that do not know the later
-- copy. It has the owner's rights, because sidecars may not write meta.
CREATE OR REPLACE FUNCTION locksidecar.outdate(known bigint, later bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE locksidecar.meta SET outdated = true, server = ''
    WHERE NOT outdated AND began_token = known AND known < later;
END
$$;

-- use_history_source changes how servers are identified, for an operator: 'timeline', 'server' or 'none'. It
-- begins a new history, and fails if the server refuses the source. Sidecars' roles may not write meta.
CREATE OR REPLACE FUNCTION locksidecar.use_history_source(named text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE locksidecar.meta SET source = named;
    PERFORM locksidecar.new_history();
END
$$;

-- replicated is true, and makes the end of a reading statement wait for the synchronous standby, if there is
-- one (promise 4). After a cancelled wait, a grant is visible that the standby has not confirmed. A server
-- that was cut off from its standby must not deliver such a grant. The message makes this a transaction that
-- writes.
CREATE OR REPLACE FUNCTION locksidecar.replicated() RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('synchronous_standby_names') <> '' THEN
        PERFORM pg_logical_emit_message(true, 'locksidecar', '');
    END IF;
    RETURN true;
END
$$;

-- in_time is true, or fails with LS002 if the sidecar no longer waits for the statement, which was in a buffer
-- (promise 9: nothing follows a withdrawal).
CREATE OR REPLACE FUNCTION locksidecar.in_time(not_after timestamptz) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    IF clock_timestamp() < not_after THEN
        RETURN true;
    END IF;
    RAISE EXCEPTION 'the statement came too late' USING ERRCODE = 'LS002';
END
$$;

-- may_take is true, or fails with LS003 if the sidecar was built for a schema that is too old for new locks.
-- The sidecar may still renew and release.
CREATE OR REPLACE FUNCTION locksidecar.may_take(built_for integer) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    IF (SELECT oldest_version FROM locksidecar.meta) <= built_for THEN
        RETURN true;
    END IF;
    RAISE EXCEPTION 'the sidecar is too old for the schema' USING ERRCODE = 'LS003';
END
$$;
