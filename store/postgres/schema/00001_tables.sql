-- The tables of locksidecar. Operators query them, so their names are part of the documentation.

-- +goose Up

-- mark returns another value each time. It is declared immutable, though it is not, because
-- generated columns allow nothing else: see meta.mark.
CREATE FUNCTION locksidecar.mark(boolean) RETURNS text
LANGUAGE sql IMMUTABLE AS 'SELECT gen_random_uuid()::text';

-- The schema and the server. One row.
CREATE TABLE locksidecar.meta (
    one            boolean PRIMARY KEY DEFAULT true CHECK (one),
    -- The last migration whose code was applied, too. 0: none.
    schema_version integer NOT NULL,
    -- A sidecar that was built for an older schema than this must not run.
    oldest_version integer NOT NULL,
    -- The server that granted last: its name (see here) with the mark that this row had there.
    server         text NOT NULL DEFAULT '',
    -- How servers are told apart, by all sidecars alike: see here.
    source         text NOT NULL DEFAULT 'none' CHECK (source IN ('timeline', 'server', 'none')),
    -- No grant of this history has a smaller token. Of two copies of a database, the one with the
    -- greater value is the later one.
    began_token    bigint NOT NULL DEFAULT 0,
    -- The first token of a key without a row is at least this. All deleted rows had smaller ones.
    first_token    bigint NOT NULL DEFAULT 0,
    -- A sidecar has seen a later copy. Nothing is granted here until an operator allows it.
    outdated       boolean NOT NULL DEFAULT false,
    -- A random name of this history. Two standbys can be promoted to the same timeline.
    history        uuid NOT NULL DEFAULT gen_random_uuid(),
    -- The begin of this history.
    began          timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- Nothing is granted before this time: see new_history.
    quiet_until    timestamptz NOT NULL DEFAULT '-infinity',
    -- A dump leaves generated columns out, so a restored row has another mark than the one in
    -- server. Updates of other columns keep the mark.
    mark           text GENERATED ALWAYS AS (locksidecar.mark(one)) STORED
);
INSERT INTO locksidecar.meta (schema_version, oldest_version) VALUES (0, 1);

-- A lease says "alive until expires_at". A missing lease is dead for ever, because ids are never
-- used again. Half of each page stays free and expires_at has no index, so a renewal is a HOT
-- update.
CREATE TABLE locksidecar.leases (
    id         uuid PRIMARY KEY,
    instance   text NOT NULL,
    pod        text NOT NULL,
    -- false: the lease of one bind:ttl lock. It ends with that lock.
    renewed    boolean NOT NULL,
    ttl        interval NOT NULL,
    expires_at timestamptz NOT NULL,
    -- Of an unrenewed lease: the attempt was repeated at another instance, and the grant was
    -- delivered there, too.
    repeated   boolean NOT NULL DEFAULT false,
    -- Of a renewed lease: the meta.history in which it was opened. In another history, grants may be
    -- missing, or be back: see Failover in doc.go.
    history    uuid,
    -- Of a renewed lease: a quiet time follows a failover, which may forget grants under it.
    quiet      boolean NOT NULL DEFAULT false,
    -- The only key that can be held under this lease (bind:ttl), so a reap looks at no others. Null:
    -- any key.
    namespace  text COLLATE "C",
    key        text COLLATE "C"
) WITH (fillfactor = 50, vacuum_truncate = off);

-- The TTLs of leases for which a quiet time follows a failover, noted before a lease is opened. So
-- they are known after a failover that has forgotten the lease. A TTL that is not used is deleted
-- some time after its end.
CREATE TABLE locksidecar.quiet_ttls (
    ttl   interval PRIMARY KEY,
    until timestamptz NOT NULL
);

-- One row per key. The key is held if the lease of lease_id exists and has not expired by this
-- database's clock. It is free if lease_id is null. The columns of the holder then describe the
-- last grant. attempt_id is null if that was released (also if its min_hold is pending), and not null
-- if its lease died.
--
-- A min_hold keeps the key until hold_until, even if the lease is dead. A release before that moves
-- the lock to a lease id that does not exist, so the hold is pending: lease_id stays set, and no
-- statement that takes free keys has to know of holds.
--
-- A grant's token is greater than the last one of its row, and the clock gives the first token of a
-- row: see token_at. Rows of free keys stay for an hour, because a statement can read the clock and
-- then wait: when it inserts, the row of a later grant must still be there. A foreign key or a second
-- index would make every grant more expensive, so the sweep reads the table page by page (see
-- sweep_step). Half of each page stays free, so that releases of a whole page are HOT updates, too.
--
-- Vacuum comes when 5% of the table is dead instead of 20%. It does not truncate the table, because
-- that would lock out all sessions.
CREATE TABLE locksidecar.locks (
    namespace   text COLLATE "C" NOT NULL,
    key         text COLLATE "C" NOT NULL,
    lease_id    uuid,
    token       bigint NOT NULL,
    attempt_id    uuid,
    -- Somebody waits: a release hands the lock over.
    contended   boolean NOT NULL DEFAULT false,
    -- Somebody watches the key.
    watched     boolean NOT NULL DEFAULT false,
    -- The holder's instance may keep the key for its next session: see Kept keys in doc.go. Each grant sets it, and a
    -- release leaves it, so it says nothing of a free key.
    keepable    boolean NOT NULL DEFAULT false,
    -- The time of the first request to stop, and the reason of the last one.
    stopping    timestamptz,
    stop_reason text,
    session     text NOT NULL DEFAULT '',
    owner       text NOT NULL DEFAULT '',
    acquired_at timestamptz,
    -- JSON as text, so bad JSON cannot break a batch.
    data        text,
    -- The trace contexts of the acquire, and of the release that handed the key over. handed_by is
    -- empty if no release did.
    traceparent text NOT NULL DEFAULT '',
    handed_by   text NOT NULL DEFAULT '',
    freed_at    timestamptz,
    -- The end of the min_hold. Null: there is none, or the key is free. The instance and the pod
    -- that it was granted to, because their lease can be gone before.
    hold_until    timestamptz,
    hold_instance text,
    hold_pod      text,
    -- The queue comes after this id of a waiter: no waiter with an id up to it waits any more. Statements read the queue
    -- after it, because an open snapshot keeps dead rows of earlier waiters in the index, and each hand-off would read
    -- all of them.
    queue_after bigint NOT NULL DEFAULT 0,
    -- Not null: the key is shared, see shares. It is the limit of holders, or 0 for none. lease_id is then
    -- shared_lease(), token is that of the youngest share, and attempt_id is null if that was released.
    share_limit      integer,
    PRIMARY KEY (namespace, key)
) WITH (fillfactor = 50, vacuum_truncate = off, autovacuum_vacuum_scale_factor = 0.05);

-- The holders of shared keys. All changes are made under the lock of the lock row. A share counts until its
-- row is deleted: by a release, or when its lease is gone and its min_hold is over.
CREATE TABLE locksidecar.shares (
    namespace   text COLLATE "C" NOT NULL,
    key         text COLLATE "C" NOT NULL,
    token       bigint NOT NULL,
    lease_id    uuid NOT NULL,
    -- Null: it was released, and its min_hold is pending.
    attempt_id    uuid,
    -- With a limit, the smallest number from 0 on that no other share had.
    slot        integer NOT NULL,
    session     text NOT NULL,
    owner       text NOT NULL,
    acquired_at timestamptz NOT NULL,
    data        text,
    traceparent text NOT NULL,
    handed_by   text NOT NULL,
    stopping    timestamptz,
    stop_reason text,
    hold_until    timestamptz,
    hold_instance text,
    hold_pod      text,
    PRIMARY KEY (namespace, key, token)
) WITH (vacuum_truncate = off, autovacuum_vacuum_scale_factor = 0.05);
-- A reap hands on the keys of the shares that it ends, whether a waiter is known or not. So nobody
-- must lock the leases of all holders to wait for a shared key.
CREATE INDEX shares_lease ON locksidecar.shares (lease_id);
-- A repeated ask, and a check, find the share of their attempt.
CREATE INDEX shares_attempt ON locksidecar.shares (attempt_id);

-- The queues. The ids are the order of a key's queue, because a waiter is inserted under the lock
-- of the lock row. A row with an outcome waits no more: its sidecar reads the outcome.
CREATE TABLE locksidecar.waiters (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    attempt_id    uuid NOT NULL,
    namespace   text COLLATE "C" NOT NULL,
    key         text COLLATE "C" NOT NULL,
    -- The lease that keeps the queue position.
    lease_id    uuid NOT NULL,
    -- Not null: the waiter asks for a bind:ttl lock with this TTL.
    ttl         interval,
    -- Not null: the lock keeps the key for at least this long.
    min_hold    interval,
    -- The waiter wants the result instead of the lock if the holder releases with success.
    skip        boolean NOT NULL DEFAULT false,
    session     text NOT NULL DEFAULT '',
    owner       text NOT NULL DEFAULT '',
    data        text,
    traceparent text NOT NULL DEFAULT '',
    enqueued_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- 'success': a release with this result skipped the waiter.
    outcome     text,
    result      text,
    -- Not null: the waiter asks for a share, and this is its limit of holders, or 0 for none.
    share_limit      integer,
    -- The same request may come in two namespaces.
    UNIQUE (namespace, attempt_id)
) WITH (vacuum_truncate = off);
-- The key comes first. Otherwise a plan from the time of a small table could look for a attempt_id
-- with this index, and read all waiters of the namespace.
CREATE INDEX waiters_queue ON locksidecar.waiters (key, namespace, id);
CREATE INDEX waiters_lease ON locksidecar.waiters (lease_id);
-- Tells whether a key has shared waiters. It costs exclusive ones nothing.
CREATE INDEX waiters_shared ON locksidecar.waiters (key, namespace) WHERE share_limit IS NOT NULL;

-- Requests to sessions that hold locks. The holder's sidecar deletes them when it has read them.
CREATE TABLE locksidecar.signals (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    -- The lease that the lock is held under.
    lease_id     uuid NOT NULL,
    namespace    text COLLATE "C" NOT NULL,
    key          text COLLATE "C" NOT NULL,
    token        bigint NOT NULL,
    kind         text NOT NULL CHECK (kind IN ('stop', 'break')),
    reason       text,
    requested_at timestamptz NOT NULL
);
CREATE INDEX signals_lease ON locksidecar.signals (lease_id, key);

-- drop_signals deletes a lease's signals with the lease, whichever statement deletes that. An
-- insertion locks the lease FOR KEY SHARE first, so the deletion waits for it and this sees the
-- row. A locked signal is skipped: it is being acknowledged, or else the sweep deletes it. A
-- foreign key would wait for it, and with it all leases of the batch.
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

-- The instances of these leases watch these keys. locks.watched says that there are any.
CREATE TABLE locksidecar.watchers (
    namespace text COLLATE "C" NOT NULL,
    key       text COLLATE "C" NOT NULL,
    lease_id  uuid NOT NULL,
    PRIMARY KEY (namespace, key, lease_id)
);
CREATE INDEX watchers_lease ON locksidecar.watchers (lease_id);

-- A lock with its lease, as calls see it: see the function show.
CREATE TYPE locksidecar.shown_lock AS (
    token        bigint,
    acquired_at  timestamptz,
    -- The end of the lease or of a min_hold, whichever is later.
    expires_at   timestamptz,
    now          timestamptz,
    -- Of the lease. Null: it does not exist.
    lease_id     uuid,
    instance     text,
    pod          text,
    renewed      boolean,
    -- Only a min_hold keeps the key.
    hold_pending boolean,
    keepable     boolean,
    session      text,
    owner        text,
    data         text,
    traceparent  text,
    stopping     timestamptz,
    stop_reason  text,
    -- Null: there was no grant, or it was released.
    attempt_id   uuid,
    -- The number of waiters.
    waiting      bigint,
    -- The limit of the shares, or that of shared waiters.
    share_limit  integer,
    slot         integer,
    -- The holders of a shared key as JSON: see the function shown.
    holders      text
);

-- What became of a key when its grant, or a share of it, ended. Outcomes:
--
--   granted          The first living waiter has the key, or a share of it.
--   freed            Nobody waits.
--   waiters_expired  Only waiters with expired leases wait. The caller reaps these (to_reap), in transactions of their
--                    own, and hands the key off again. Expired is not dead, because a renewal may be in flight.
--   hold_pending     A min_hold keeps the key, or it is the quiet time. The first waiters check again (hints).
--   ended            A release or a withdrawal ended a share. Further rows say what became of the key.
--   lapsed           A share was dropped, because its lease is gone.
--   passed           Nothing was granted, but waiters should check again, or have expired.
--   null             Nothing has changed. Hints belong to a repeat, whose first answer may be lost.
CREATE TYPE locksidecar.hand_over AS (
    outcome        text,
    -- The leases of expired waiters: those in the way, or those that were passed over.
    to_reap        uuid[],
    -- The next grant: its attempt, lease, the instance that it is for, and for how long. slot is that of a share.
    attempt_id     uuid,
    lease_id       uuid,
    instance       text,
    token          bigint,
    acquired_at    timestamptz,
    expires_at     timestamptz,
    slot           integer,
    -- The waiters that the next holder's sidecar may serve: see the function cohort.
    cohort         uuid[],
    -- Waiters that should check again, and their instances.
    hints          uuid[],
    hint_instances text[],
    -- For watchers: whether the key has any, and the token of the grant that ends here. Null: none ends.
    watched        boolean,
    ended          bigint,
    -- The time by the database's clock. It comes last, so the next grant is not younger.
    now            timestamptz
);

-- The instance that reads statistics for all sidecars. One row. No lock depends on it.
CREATE TABLE locksidecar.fleet (
    one           boolean PRIMARY KEY DEFAULT true CHECK (one),
    instance      text NOT NULL,
    elected_until timestamptz NOT NULL
) WITH (fillfactor = 10);
INSERT INTO locksidecar.fleet (instance, elected_until) VALUES ('', '-infinity');

-- The position of the sweep, which all sidecars share. One row. A lap goes through the table leases
-- and then through the table locks, some pages at a time. Then the sweep rests.
CREATE TABLE locksidecar.sweep (
    one    boolean PRIMARY KEY DEFAULT true CHECK (one),
    -- The table, and the next page in it.
    walks  text NOT NULL DEFAULT 'leases' CHECK (walks IN ('leases', 'locks')),
    page   bigint NOT NULL DEFAULT 0,
    -- The begin of this lap, and the earliest time of the next step.
    began  timestamptz NOT NULL DEFAULT '-infinity',
    due_at timestamptz NOT NULL DEFAULT '-infinity'
) WITH (fillfactor = 10);
INSERT INTO locksidecar.sweep DEFAULT VALUES;
