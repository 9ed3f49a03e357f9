// Package postgres keeps locks in a PostgreSQL database, version 14 or later.
//
// # Who decides
//
// The database decides by its own clock. A grant is a row of locksidecar.locks that names a lease. A result
// is used only after the statement is committed and read to its end, because rows of RETURNING arrive
// before the commit. Each statement is a transaction of its own. If a flow needs several statements, it is
// a function in the database (code/), so a pod that loses its connection leaves no row locked. Statements
// are in queries/ by their names, tables in schema/, with the two types that functions answer with: shown_lock,
// a lock with its lease, and hand_over, what became of a key. Their comments name promises by the numbers of
// docs/guarantees.md.
//
// A lock is not held if its lease is missing or has expired, and no min_hold keeps the key. So the death of
// a holder deletes one row, regardless of how many locks the lease holds. Only keys with waiters need a
// hand-off. The next acquire or the sweep finds the other keys.
//
// In READ COMMITTED, each statement of a function sees what was committed before the statement began. Therefore
// functions lock a row in one statement and read in the next. A statement that waits for a row lock must not decide
// by another table, because it rereads only the locked row: everything else is as before the wait.
//
// Rows are locked in one order: lock rows by key, waiters, leases. A statement that locks waiters or
// deletes leases without the lock row (cancel, reap, renew) never waits for such a row while it holds
// another. So functions may lock waiters and leases in any order after their lock rows.
//
// # Three answers that are easily confused
//
//   - Expired is not dead, because a renewal may be in flight. A reap (reap.go) deletes the lease only if
//     it is still expired when its row is locked.
//   - "This statement did not delete the lease" does not mean that the lease is alive: another session may
//     have reaped it.
//   - Failed is not withdrawn. An error from the server means that nothing was done. If a connection breaks
//     after the statement was sent, the outcome is unknown (errors.go). A repeat with the same attempt id
//     finds the outcome.
//
// # Acquire
//
// The first statement takes free keys, and waits for at most one row. The next one reads the holders of the
// other keys. A living holder is the answer. A dead one is reaped in a transaction of its own, and its keys
// with waiters are handed off. The function ask takes or enqueues the rest. It locks each row before it
// looks for the holder's lease. A statement that waits for a lock row never decides by the absence of a
// lease, because it could then take a lock from a living holder.
//
// A repeat with the same attempt id waits for the attempt that may be in flight. The first statement does
// not grant the key again. Then the read finds the existing grant, with its token, lease and time.
//
// # Queue positions
//
// A commit is flushed before it is answered, with one exception: a statement that only enqueues calls (the
// function ask). It has locked the row that the next release needs, and a flush takes longer than all its
// other work. So a crash, or a failover to a synchronous standby, can forget a waiter whose caller was told
// that it waits. This is safe:
//
//   - After a crash the server knows all commits up to some moment. The mark of a waiter (contended) is
//     committed together with the waiter, and writes that depend on the waiter come later. So a forgotten
//     waiter leaves no trace.
//   - A queue position alone permits nothing. A grant is answered when its own commit is flushed, with all
//     earlier ones. A cancel is flushed, because otherwise the waiter could come back and be granted a lock
//     that has no caller. A change of the instance that keeps a position is flushed, because the first
//     instance then cancels without a write.
//   - Its sidecar notices. A crash breaks connections, and a new listener checks all waits, as do polls and
//     renewals. If the row is gone without a grant, the call is enqueued again at the end.
//   - A server without its standby renews no lease, so waiters that it enqueued lose their positions.
//
// # Releases
//
// A release does not wait for a flush either if it hands nothing over, reports no outcome and has its own
// connection to the server (release_one, release_many). A crash or a failover can forget it. Then the key
// stays held under the lease of the sidecar that released it, although it has no owner:
//
//   - No grant depends on the forgotten release. The next grant of the key is committed later and is
//     flushed. A crash forgets a commit only together with all later ones. So after a crash the row has the
//     last confirmed grant, or its release. Tokens grow by the row, which has the token of the last
//     confirmed grant.
//   - The sidecar remembers the release (unflushed.go) until a later commit is flushed, usually that of a
//     grant or a renewal. A crash breaks all connections. When the sidecar (or its listener) has connected
//     again, it repeats the remembered releases, with a flush. A release of an old token does nothing. A
//     session's lock is not asked for again by its attempt id, so a caller cannot have found the forgotten
//     grant meanwhile.
//   - If the sidecar dies before it repeats the release, the key becomes free when the lease ends, as if
//     the sidecar had died before the release.
//   - Behind a pooler, a crash may break no connection of the sidecar, so each release is flushed.
//
// # Kept keys
//
// An instance that releases a key and asks for it again may keep it between its sessions: the grant is keepable
// (store.Answer). The asker names the token that it knew last. The row still has this token if nobody had the key since.
// So the statement that grants judges it by the locked row, with the marks of waiters and watchers. A mark can be older
// than its last watcher. Then the grant is not keepable, and its event removes the mark.
//
//   - A kept key looks held, by its lease and token. All statements treat it so, and its late release is an ordinary
//     one. The 256 tokens that each grant has suffice for the sessions between.
//   - A waiter or watcher of another instance locks the row, so it comes before the grant, which is then not keepable,
//     or it finds the mark (keepable), and its statement says whom to recall. Each enqueue of a kept key does, also
//     behind other waiters, because their instances may have ended before they sent a recall. A recall is a hint, as
//     the others below.
//   - What tells others of the holder (amend, downgrade, adopt) ends the mark. Each grant sets it anew, so a row of a
//     free key or of a dead holder may have it still.
//
// # Shares
//
// A shared key has a row in the table shares for each holder. Its lock row names a lease that does not
// exist (shared_lease), and the limit (share_limit). So the statements for exclusive locks see the key as held,
// and leave it to the functions. These lock the lock row and then branch on share_limit (code/shares.sql). They
// read the shares in a later statement, because a statement that waited for the row has an old snapshot.
//
//   - An enqueue does not lock the holders' leases, because there can be many. A reap hands on the keys of
//     all shares that it ends, even if no waiter is known. The hand-off waits for an enqueue in flight.
//   - A waiter that leaves may have blocked others. A withdrawal, a move to another lease and a release
//     check this in their transaction. A cancel and a reap delete waiters without the lock row. Afterwards
//     they read whether the key is shared, or has a shared waiter, and settle it with the row locked
//     (letIn). This read follows the commit of the deletion. A hand-off that still saw the deleted waiter
//     began before that commit, as did all shared waiters that it can grant.
//   - The function look reports whether a key must be settled. Asks, and checks of waiters, do that first.
//     So they complete a hand-off that a crash prevented.
//   - Another instance is notified of a share's grant by a hint, never in full.
//
// # Outcomes and min_hold
//
// A release with success marks the waiters that it skips, in its transaction. These no longer wait. Their
// rows stay until their sidecars have read them or their leases are dead.
//
// A min_hold is a time in the lock row (hold_until). Until then the key counts as held, even if the lease
// is dead. A release before that time moves the lock to a lease id that does not exist, so only the time
// keeps the key. A break, a withdrawal or a release at once ends a hold early, each with the lock row
// locked. A reap deletes the lease as always. Its hand-off finds the time and leaves the key.
//
// Waiters expect the later end of lease and hold. So their check comes when the hold is over, and hands the
// key to the first. If a release or a revocation ends the lease before that, the waiters get a hint,
// because they may expect a later end. The sweep finds keys that were not checked.
//
// A release removes the grant from the row and a reap does not, so later claims get different answers. The
// statements for sessions' locks leave locks with a min_hold to the functions. The lease of a bind:ttl lock
// names its key, so a reap does not read all keys with waiters.
//
// # What comes too late
//
// The statement of a withdrawn attempt may still be in a buffer and run later. So each statement that takes
// something, or gives something up by an attempt id, does nothing after its operation's time limit, by the
// database's clock (clock.go, in_time). A withdrawal is final if it is repeated when the attempt is two
// limits old, one for the statement to begin and one for it to end, and if the database's clock had passed the
// statement's limit when the withdrawal began (late.go). Otherwise that clock was set back, or stood still with its
// machine, and the withdrawal is repeated. A clock that is set back after that can still let a statement act that is
// older than two limits.
//
// # Locked rows
//
// Other sessions can lock a row for hours. A statement waits at most 100 ms for a row. Then it runs without
// the items whose rows are locked, and callers ask again for these alone (locked.go).
//
// # News
//
// The table in tell.go says who is told of a hand-off, by what, and when. The reasons:
//
// A waiter of this instance gets its grant directly. Another instance gets a NOTIFY after the commit, in a
// transaction that writes nothing, because the server runs commits with NOTIFY one after another. In the
// releasing transaction, each hand-off would wait for the flushes of all others, and another program's
// NOTIFY could fail a release. Notifications can be lost, and any database user may send and receive them.
// LISTEN has its own connection while the sidecar needs notifications (listen.go, package lease/internal/hearing), because each
// NOTIFY wakes all listeners of the database. From version 19 on, the server wakes only those of the channel, and each instance has
// its own. When this connection begins to listen, ends or breaks, all waits, signals and watched keys are checked. After a break the
// listener connects again at once, or as soon as the store is ready: until it hears, the sidecar polls, and keeps no key.
//
// A release sends the complete grant of its hand-off (the statement notify_grants), sent together with it, and
// carried out after its commit. It reads the rows as the waiter's check would, so the waiter's sidecar need not ask.
// The sidecar may believe the notification:
//
//   - The grant is committed, because the statement reads committed rows. This includes a commit that no
//     standby has confirmed because its wait was cancelled: see Failover. This package cancels no wait of
//     less than 100 ms, so a release that takes longer sends only a hint. If another session cancels
//     (pg_cancel_backend), a waiter can receive a grant that a failover forgets.
//   - While its waiter waits, only readers of the rows know the whole attempt id, 122 random bits. Hints
//     name the first half (words.go). Ids that can be derived from a request_id are not sent in full. A
//     role that may read attempt_id could forge a grant; see Rights.
//   - A late or repeated notification finds no waiter, because each attempt has its own id, and the grant
//     is released when the attempt ends.
//   - The lock is held under the waiter's own renewed lease, which the sidecar trusts until its own
//     deadline. If the lease was reaped meanwhile, that deadline has passed. For a bind:ttl lock there is
//     only a hint, because its time runs from the grant.
//   - A break between the grant and the notification leaves a signal, which waits for the grant.
//
// All other notifications are hints: of hand-offs by a reap, a withdrawal or the release of a bind:ttl
// lock, and of signals. The checks that accompany renewals replace a lost one.
//
// A repeated release sends its news again, because answer and news may be lost. A client can repeat the
// release of a bind:ttl lock as often as it likes, so such news are hints, at most one a second.
//
// Events of watched keys (watch.go, event.go) are sent in full, by one statement that finds the watchers.
// The statements that change a lock report whether it has watchers.
//
// # Signals
//
// A row in the table signals asks a session to stop, or to give its lock up. Its sidecar reads the row
// after a hint if it listens, or with the next renewal. A break of a lock that no session claims reaps the lease.
//
// # The sweep
//
// The sweep reads the tables leases and locks page by page (sweep.go, code/sweep.sql), because an index
// would make every grant more expensive. All sidecars share one row with the next page and the time of the
// next step, and do not wait for each other.
//
// # The fleet
//
// Stats reads every lock in one statement, so it is for people, and for one instance on behalf of all. The row of
// the table fleet names this instance, and the end of its term. After a failover two instances may count.
//
// # Metrics and spans
//
// Each statement is measured by its name, from when its connection is available (telemetry.go). It is a
// span if the context has a recorded one. A hand-off writes the release's trace context into the lock row
// (handed_by), where the waiter's sidecar finds it.
//
// # Failover
//
// A promoted standby can miss the last answers, with tokens and renewals, and has another clock. The first
// statement that would grant, renew or reap there compares the server with locksidecar.meta, and fails. Then
// new_history begins a new history, the period of one primary: tokens jump beyond another server's clock, and every
// lease gets its TTL once more. The history has a new name (meta.history), which each lease records when it is
// opened. A renewal names leases of another history. The table locks has no index by lease. So the sidecar verifies
// its locks by their keys (HeldUnder), on the renewals' connection, because it trusts no lease before that. Then it
// moves them and its waiters to leases of this history (Move), and revokes the old leases, with the locks that it
// does not know. Therefore a session's lock is claimed by its instance, and not by one lease.
//
// All sidecars identify servers in one way (meta.source): by the timeline, which only a promotion or a
// recovery changes. If the server refuses to tell its timeline, the time of its start is used, which is the
// same through each connection, pooler and socket. An unnecessary history costs tokens, and a TTL without
// reaps. A missing history breaks exclusion.
//
// An asynchronous standby can miss a grant that its holder's sidecar believes in. That sidecar gives the
// lock up when it has reached the new server (HeldUnder). Otherwise it trusts the lease until its deadline,
// less than the TTL after the old server's last answer, by the sidecar's monotonic clock. So new_history
// begins a quiet time, by the new server's clock: nothing is granted for the longest TTL in use. The
// statements that grant read its end with the history: those of queries/acquire.sql, and the
// functions ask and pass_on. A pending hold keeps a key with waiters and without a holder (hold_quiet).
// After the quiet time, the waiters' checks hand the key over in order.
//
// The new server learns the TTLs from its leases, and from the notes in quiet_ttls, which are older than the leases
// that it misses: lease_open writes note and lease in one transaction, and the log is replayed in order. If the
// standby missed both the lease and the note of the longest TTL, the quiet time is too short for grants with this
// TTL. Leases of sidecars that are configured as quick, or that have a synchronous standby, are neither noted nor
// counted (failover_forgets). The quiet time ignores bind:ttl locks, because no sidecar watches their holders.
//
// If commits wait for a synchronous standby, a failover to it loses no answer. A cancelled wait leaves
// visible rows and an unknown outcome (errors.go). So a repeat or check that finds its own grant by reading
// waits for the standby once more (replicated).
//
// The old primary can come back and accept writes. A sidecar that has seen the later primary does not
// connect to the old one (timeline.go): its newer locks would be unknown there, and without a standby it
// would be granted old tokens. The later primary is the one with the greater token at the begin of its
// history, because each promoted or restored server jumps beyond the previous tokens. The sidecar also
// records that on the old server (outdate), which then grants and renews nothing until an operator makes it
// the primary again (restored). If the URL names several hosts, one that is not a copy of the previous
// server is refused, because the locks of one are free at the other.
//
// A restored backup is handled the same way. A recovered server has another timeline. A row-by-row copy
// (pg_dump, replication) has another mark, a column of meta that is not copied. If files are put back and
// the server is started from them, the store cannot notice, so an operator must call restored. The first
// token of a key is the clock, so tokens of a new schema continue after those of a lost one.
//
// # Upgrades
//
// Sidecars of two releases can share a database. A migration (migrate.go) never waits long for a table,
// because all others would queue behind it. It gives up before their lock_timeout ends, and tries again.
// Statements that take something pass the schema version of their package, and take nothing if a migration
// has declared this version too old (may_take). A renewal reports that to sidecars that only hold. Such a
// sidecar may keep, renew and release its locks.
//
// If the schema is older than this package, and was newer before, it is a restored backup. Renewals notice this,
// and statements that miss a column, table or function. The store then does nothing in it until it is migrated.
//
// # Connections
//
// Renewals have their own connection, so that a burst of acquires lets no lease die. LISTEN has another
// one, because a flood of notifications, which any database user can send, must not delay renewals. All
// other operations share the rest. Each connection is set up so that a database's defaults cannot weaken
// locks (connect.go). A pooler can give every transaction to another session. Then statements have no
// names, settings are sent together with each transaction, and hand-offs of other instances are
// polled for, unless LISTEN has its own URL (direct.go). That server is not trusted until it is known to be
// the store's and a notification to this instance has arrived.
//
// The views of a space share these connections. The one that listens has LISTEN for each view that needs notifications, and hands each notification on
// by its channel. A view hears as soon as its own LISTEN is committed and the connection has heard itself. Renewals of views that are due at the same time
// are one statement. What waits for the locked row of one view's lease, and what verifies a view's locks after a failover, does not use the connection for
// renewals then, where it would delay those of others.
//
// Before each new connection, the URL is read again, with the files that it names (server.go), so a password can be
// replaced while locks are held. The old login is used until the server accepts the new one, so the file may change
// first. Hosts and database may not change, because then connections would see different locks.
//
// # Rights
//
// On a current schema, a role needs USAGE on the schema, EXECUTE on the functions, and SELECT, INSERT,
// UPDATE, DELETE on the tables, except that SELECT is enough on meta (deploy/roles.sql). A role that may not call the
// functions may only read (reader.go): Get, List, Waiting and Stats need USAGE and SELECT, without the columns token,
// attempt_id and data, because a reader of these could release locks and forge hand-offs. All else is then unsupported.
package postgres
