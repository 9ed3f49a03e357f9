-- The tables of locksidecar. Operators query them; their names are part of the
-- documentation.

-- +goose Up

-- What runs on this schema. One row.
CREATE TABLE locksidecar.meta (
    one            boolean PRIMARY KEY DEFAULT true CHECK (one),
    -- The last migration that was applied.
    schema_version integer NOT NULL,
    -- A sidecar that was built for an older schema than this one must not run.
    oldest_version integer NOT NULL,
    -- The timeline of the server that grants: it changes with every failover.
    epoch          text NOT NULL
);
INSERT INTO locksidecar.meta (schema_version, oldest_version, epoch)
VALUES (1, 1, substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8));

-- A lease says "alive until expires_at". A missing lease is dead, and ids are
-- never used again, so death is final. Half of each page is left free, and
-- expires_at has no index, so that a renewal is a HOT update: it touches one page
-- and no index.
CREATE TABLE locksidecar.leases (
    id         uuid PRIMARY KEY,
    instance   text NOT NULL,
    pod        text NOT NULL,
    -- false: the lease of one bind:ttl lock, which ends when it ends.
    renewed    boolean NOT NULL,
    ttl        interval NOT NULL,
    expires_at timestamptz NOT NULL,
    -- An unrenewed lease whose grant another instance than the first was told of,
    -- too, because the attempt was repeated there.
    repeated   boolean NOT NULL DEFAULT false,
    -- The lock that rides on it was granted with a min_hold: it keeps the key until
    -- then, whatever becomes of its holder. expires_at is never before that.
    hold_until timestamptz,
    -- That lock was released, or its owner is gone: nobody renews or claims it any
    -- more, and it ends when the hold is over.
    standing   boolean NOT NULL DEFAULT false,
    -- The only key that it ever holds, so that its burial need not look for others: a
    -- bind:ttl lock's, or that of a lock with a min_hold. Null: it may hold any.
    namespace  text COLLATE "C",
    key        text COLLATE "C"
) WITH (fillfactor = 50);

-- A row per key. The key is held while lease_id names a lease that exists and has
-- not expired by this database's clock. A row whose lease_id is null is free; the
-- columns of the holder then tell of the last grant, and grant_id says how it
-- ended: null when it was released, not null when its lease died. (A lock whose lease
-- stands because it was released has no grant_id either.) Rows of free
-- keys stay for a day, because a token could otherwise be overtaken: it may be
-- drawn before a statement waits. No foreign key and no second index: both make
-- every grant dearer. Half of each page is left free: when all that a batch inserted into
-- a page is released by one statement, these updates are HOT, too.
CREATE TABLE locksidecar.locks (
    namespace   text COLLATE "C" NOT NULL,
    key         text COLLATE "C" NOT NULL,
    lease_id    uuid,
    token       bigint NOT NULL,
    grant_id    uuid,
    -- Somebody waits: a release must hand the lock over instead of freeing it.
    contended   boolean NOT NULL DEFAULT false,
    -- Somebody wants to hear of changes.
    watched     boolean NOT NULL DEFAULT false,
    -- When the holder was first asked to stop, and why when it was asked last.
    stopping    timestamptz,
    stop_reason text,
    session     text NOT NULL DEFAULT '',
    owner       text NOT NULL DEFAULT '',
    acquired_at timestamptz,
    -- JSON as text: the database never parses what an app wrote, so that bad
    -- JSON cannot break a batch.
    data        text,
    -- The trace contexts of the acquire that has it, and of the release that handed it
    -- over; handed_by is empty when the key was had in any other way.
    traceparent text NOT NULL DEFAULT '',
    handed_by   text NOT NULL DEFAULT '',
    freed_at    timestamptz,
    PRIMARY KEY (namespace, key)
) WITH (fillfactor = 50);

-- The queues. The order of a key's queue is the order of the ids: who inserts a
-- waiter has locked the lock row. A row with an outcome waits no more: it is there so
-- that its sidecar can read what became of it.
CREATE TABLE locksidecar.waiters (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    grant_id    uuid NOT NULL,
    namespace   text COLLATE "C" NOT NULL,
    key         text COLLATE "C" NOT NULL,
    -- The lease that keeps the place in line.
    lease_id    uuid NOT NULL,
    -- Not null: the waiter asks for a bind:ttl lock that lasts so long.
    ttl         interval,
    -- Not null: the lock is to be kept for so long after the grant.
    min_hold    interval,
    -- It wants no lock, but the result, once the holder has released with success.
    skip        boolean NOT NULL DEFAULT false,
    session     text NOT NULL DEFAULT '',
    owner       text NOT NULL DEFAULT '',
    data        text,
    traceparent text NOT NULL DEFAULT '',
    enqueued_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- 'success': it was skipped, for the holder released so, with this result.
    outcome     text,
    result      text,
    -- Namespaces know nothing of each other: the same request may come in two.
    UNIQUE (namespace, grant_id)
);
-- The key comes first, or a plan that was made while the table was small could look for a
-- grant_id with this index, and read all that wait in the namespace.
CREATE INDEX waiters_queue ON locksidecar.waiters (key, namespace, id);
CREATE INDEX waiters_lease ON locksidecar.waiters (lease_id);

-- Fencing tokens, for all keys. CACHE 1: with a larger cache each connection would
-- draw from a stock of its own, and a later grant could get a smaller token.
CREATE SEQUENCE locksidecar.tokens AS bigint CACHE 1;
