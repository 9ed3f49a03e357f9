-- Three roles: locksidecar_migrator owns the schema and runs `locksidecar migrate`
-- (migrate-job.yaml); locksidecar is what sidecars use, with LOCKSIDECAR_AUTO_MIGRATE=false,
-- and may neither create nor alter anything; locksidecar_reader is for dashboards and the console
-- (console.yaml), and may only look.
--
--   psql -v ON_ERROR_STOP=1 -f roles.sql "postgres://admin@db.example.com/app"
--
-- Run it in the database of the locks, before the first migration and once more after it
-- (see the end); it may be run any number of times. Whoever runs it needs CREATEROLE, and CREATE
-- on the database. Then give the roles passwords, or whatever your server knows them by:
--
--   \password locksidecar_migrator
--   \password locksidecar
--   \password locksidecar_reader
--
-- Where sidecars have migrated by themselves until now, the tables are their role's. Who runs
-- this must be a superuser then, or another role that is a member of that one (not the
-- former role itself: it would become the migrator's member, and each the other's is an
-- error); and lets the migrator act for it:
--
--   GRANT former_role TO CURRENT_USER;          -- before, unless a superuser
--   GRANT former_role TO locksidecar_migrator;  -- after
--
-- If that role is called locksidecar itself, it owns the schema, and no grant would take that
-- from it: this refuses then. Set LOCKSIDECAR_AUTO_MIGRATE=false for the sidecars; then a superuser
-- hands over what the role owns in this database, and its rights, in one transaction, so that
-- the sidecars notice nothing:
--
--   psql -1 -v ON_ERROR_STOP=1 -c 'REASSIGN OWNED BY locksidecar TO locksidecar_migrator' -f roles.sql URL
--   REVOKE CREATE ON DATABASE app FROM locksidecar;

DO $$
BEGIN
    IF to_regrole('locksidecar_migrator') IS NULL THEN
        CREATE ROLE locksidecar_migrator LOGIN;
    END IF;
    IF to_regrole('locksidecar') IS NULL THEN
        CREATE ROLE locksidecar LOGIN;
    END IF;
    IF to_regrole('locksidecar_reader') IS NULL THEN
        CREATE ROLE locksidecar_reader LOGIN;
        -- A transaction that is left open stops vacuum: each acquire leaves a dead row behind.
        ALTER ROLE locksidecar_reader SET idle_in_transaction_session_timeout = '1min';
        ALTER ROLE locksidecar_reader SET statement_timeout = '1min';
    END IF;
    EXECUTE format('GRANT CONNECT ON DATABASE %I TO locksidecar_migrator, locksidecar, locksidecar_reader', current_database());
    -- Who is no superuser must be a member to make a schema for a role, and to grant what
    -- is the role's. From PostgreSQL 16 on, who made a role is a member that may only give it
    -- to others ('MEMBER'), so to itself, too.
    IF NOT pg_has_role(current_user, 'locksidecar_migrator', 'USAGE') THEN
        EXECUTE format('GRANT locksidecar_migrator TO %I', current_user);
    END IF;
END
$$;

DO $$
BEGIN
    IF EXISTS (
        SELECT FROM pg_namespace n LEFT JOIN pg_class c ON c.relnamespace = n.oid
        WHERE n.nspname = 'locksidecar' AND to_regrole('locksidecar') IN (n.nspowner, c.relowner)
    ) THEN
        RAISE 'the role locksidecar owns the schema locksidecar, or tables in it, and may change them whatever is granted'
            USING HINT = 'As a superuser: psql -1 -v ON_ERROR_STOP=1 '
                '-c ''REASSIGN OWNED BY locksidecar TO locksidecar_migrator'' -f roles.sql URL; '
                'then REVOKE CREATE ON DATABASE from it.';
    END IF;
END
$$;

-- The migrator needs no right to create schemas: this is its only one.
CREATE SCHEMA IF NOT EXISTS locksidecar AUTHORIZATION locksidecar_migrator;

-- The sidecar reads and writes rows, and calls the functions; what later migrations make is
-- included.
GRANT USAGE ON SCHEMA locksidecar TO locksidecar;
REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA locksidecar FROM PUBLIC;
ALTER DEFAULT PRIVILEGES FOR ROLE locksidecar_migrator REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC;
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA locksidecar TO locksidecar;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA locksidecar TO locksidecar;
ALTER DEFAULT PRIVILEGES FOR ROLE locksidecar_migrator IN SCHEMA locksidecar
    GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO locksidecar;
ALTER DEFAULT PRIVILEGES FOR ROLE locksidecar_migrator IN SCHEMA locksidecar
    GRANT EXECUTE ON FUNCTIONS TO locksidecar;

-- What names tables is done once they are there.
DO $$
BEGIN
    IF to_regclass('locksidecar.meta') IS NULL THEN
        RETURN;
    END IF;

    -- What is the migrator's alone: default privileges know no names, so it is taken back.
    REVOKE INSERT, UPDATE, DELETE ON locksidecar.meta FROM locksidecar;
    REVOKE ALL ON locksidecar.goose_db_version FROM locksidecar;

    -- The reader sees who holds what, who waits, since when and until when. Not the ids of
    -- grants, for who knows them can forge a hand-off; not the tokens, with which any sidecar
    -- releases a bind:ttl lock; not what apps keep with locks and results. Columns that later
    -- migrations add there are not the reader's before they are named here.
    REVOKE ALL ON ALL TABLES IN SCHEMA locksidecar FROM locksidecar_reader;
    GRANT USAGE ON SCHEMA locksidecar TO locksidecar_reader;
    GRANT SELECT ON locksidecar.meta, locksidecar.leases TO locksidecar_reader;
    GRANT SELECT (namespace, key, lease_id, contended, watched, keepable, stopping, stop_reason, session, owner,
        acquired_at, traceparent, freed_at, hold_until, hold_instance, hold_pod, share_limit, queue_after) ON locksidecar.locks TO locksidecar_reader;
    GRANT SELECT (namespace, key, lease_id, slot, session, owner, acquired_at, traceparent, stopping, stop_reason,
        hold_until, hold_instance, hold_pod) ON locksidecar.shares TO locksidecar_reader;
    GRANT SELECT (id, namespace, key, lease_id, ttl, min_hold, skip, session, owner, traceparent,
        enqueued_at, outcome, share_limit) ON locksidecar.waiters TO locksidecar_reader;
    GRANT EXECUTE ON FUNCTION locksidecar.waiting_limit(text, text, bigint) TO locksidecar_reader; -- it only reads
END
$$;
