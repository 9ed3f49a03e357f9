// Package postgres keeps locks in a PostgreSQL database, version 14 or later.
//
// # Who decides
//
// The database decides by its own clock. A grant is a row of locksidecar.locks that names a lease.
// Nothing is answered before the statement is committed and read to its end, because rows of
// RETURNING arrive before the commit. Each statement is a transaction of its own. A flow of more
// than one statement is a function in the database (code/), so that a pod that is cut off leaves no
// row locked. Statements are in queries/ by their names, tables in schema/.
//
// A lock is not held if its lease is missing or has expired, and no min_hold keeps the key. So the
// death of a holder is one deleted row, however many locks are held under the lease. Only keys with
// waiters need a hand-off. The next acquire or the sweep finds the others.
//
// In READ COMMITTED each statement of a function sees what was committed before it began. So
// functions lock a row in one statement and look in the next. A statement that waits for a row
// lock must not decide by another table: it checks the row again, but sees the rest as it was
// before the wait.
//
// Rows are locked in one order: lock rows by key, waiters, leases. A statement that locks waiters
// or deletes leases without the lock row (cancel, reap, renew) never waits for one while it has
// another. So functions may lock waiters and leases in any order after their lock rows.
//
// # Three answers that are easily confused
//
//   - Expired is not dead: a renewal may be in flight. A reap (reap.go) deletes the lease if it is
//     still expired when its row is locked.
//   - Not deleted is not alive: another session may have reaped it.
//   - Failed is not withdrawn. An error from the server means that nothing was done. If a connection
//     breaks after the statement was sent, the outcome is unknown (errors.go). A repeat with the same
//     attempt id finds out.
//
// # Acquire
//
// The first statement takes what is free, and waits for at most one row. Then the others are read.
// A living holder is the answer. A dead one is reaped in a transaction of its own, and its keys with
// waiters are handed off. The function ask takes or enqueues the rest, with each row locked before
// it looks for the holder's lease. A statement that waits for a lock row never decides by the
// absence of a lease: it would steal a live lock.
//
// A repeat with the same attempt id waits for the attempt that may be in flight. The first statement
// refuses it like any other. Then the read finds its grant, with token, lease and time as they were.
//
// # Queue positions
//
// A commit is flushed before it is answered, except if calls are only enqueued (the function ask):
// that statement has locked the row that the next release needs, and a flush takes longer than all
// else. So a crash, or a failover to a synchronous standby, can forget a waiter that was told that
// it waits. This is safe:
//
//   - After a crash the server knows all commits up to some moment. The mark of a waiter (contended)
//     is committed with it, and writes because of it later. So nothing is left of a forgotten waiter.
//   - Nobody acts on a queue position. A grant is answered when its own commit is flushed, with all
//     earlier ones. A cancel is flushed, because a waiter that came back would be granted the lock
//     for nobody. A position that moves to another instance is flushed, because the first one then
//     cancels without a write.
//   - Its sidecar finds out. A crash breaks connections, and a new listener checks all waits, as do
//     polls and renewals. If the row is gone without a grant, the call is enqueued again at the end.
//   - A server without its standby renews no lease, so the waiters that it tells of positions lose
//     theirs.
//
// # Releases
//
// A release waits for no flush either if it hands nothing over, tells no outcome and has its own
// connection to the server (release_one, release_many). A crash, or a failover, can forget it. Then the
// key is held for nobody, under the lease of the sidecar that released it:
//
//   - No grant depends on it. The next grant of the key is committed later and is flushed. A crash forgets a
//     commit only with all later ones, so what it leaves of a key is a grant that was confirmed, or
//     the release of that grant. Tokens grow by the row, which has the token of the last confirmed grant.
//   - The sidecar remembers the release (unflushed.go) until a later commit was flushed: that of a grant
//     or a renewal, as a rule. A crash breaks all connections. When the sidecar has made a new one, also
//     the one that listens, it sends again what it remembers, with a flush. A release of a token that is
//     not the holder's does nothing. The attempt id of a session's lock is not asked for again, so nobody
//     can have found the forgotten grant meanwhile.
//   - If the sidecar dies before that, the key is free when its lease has ended, as if it had died before
//     the release.
//   - Behind a pooler a crash may break no connection of the sidecar, so each release is flushed.
//
// # Shares
//
// A shared key has a row in the table shares for each holder. Its lock row names a lease that does not exist
// (shared_lease), and the limit (places). So the statements for exclusive locks take the key for held, and
// leave it to the functions, which branch on places with the lock row locked (code/shares.sql). They read the
// shares in a statement of its own after that, because a statement that waited for the row has an old snapshot.
//
//   - An enqueue does not lock the leases of the holders: there can be many. A reap hands on the keys of all
//     shares that it ends, whether a waiter is known or not. The hand-off waits for an enqueue in flight.
//   - A waiter that leaves may have kept others waiting. A withdrawal, a move to another lease and a release look
//     for that in their transaction. A cancel and a reap delete waiters without the lock row. Then they read
//     whether the key is shared, or has a shared waiter, and settle it with the row locked (letIn). The
//     reading comes after the deletion is committed: a hand-off that has seen the waiter began before, and so
//     did all shared waiters that it can grant.
//   - The function look says whether a key must be settled. Asks, and checks of waiters, do that first.
//     So a hand-on that a crash has prevented is made up for.
//   - A grant of a share is told to another instance by a hint, never in full.
//
// # Outcomes and min_hold
//
// A successful release marks the waiters that it skips, in its transaction. They wait no more, and
// their rows stay until their sidecars have read them or their leases are dead.
//
// A min_hold is a time in the lock row (hold_until). Until then the key counts as held, also if the
// lease is dead. A release before that moves the lock to a lease id that does not exist, so only the
// time keeps the key. A hold ends early by a break, a withdrawal or a release at once, each with the
// lock row locked. A reap deletes the lease as always, and its hand-off finds the time and leaves
// the key.
//
// Waiters are told the later of the two ends. So their check is due when the hold is over, and hands
// the key to the first. If a release or a revocation ends the lease before that, they get a hint,
// because they may know a later end. The sweep finds keys without any check.
//
// A release forgets the grant and a reap does not, so later claims hear the difference. The
// statements for sessions' locks leave locks with a min_hold to the functions. The lease of a
// bind:ttl lock notes its key, so a reap does not look at all keys with waiters.
//
// # What comes too late
//
// The statement of a withdrawn attempt may still lie in a buffer and run later. So each statement
// that takes something, or gives something up by an attempt id, does nothing after the limit of its
// operation, by the database's clock (clock.go, in_time). A withdrawal is final if it is repeated
// when the attempt is two limits old, one for the statement to begin and one for it to end.
//
// # Locked rows
//
// Other sessions can lock a row for hours. A statement waits at most 100 ms for a row. Then it runs
// without the items whose rows are locked, and callers ask again for these alone (locked.go).
//
// # News
//
// A waiter of this instance gets its grant directly. Another instance gets a NOTIFY after the
// commit, in a transaction that writes nothing: the server's commits with NOTIFY wait for each
// other. In the releasing transaction, all hand-offs would wait for the disk one after another, and
// another program's NOTIFY could fail a release. Words can be lost, and everybody may send and hear
// them. LISTEN has its own connection while there is something to hear (listen.go). When it breaks,
// all waits, signals and watched keys are checked.
//
// A release delivers the grant of its hand-off in full (the statement notify_grants), in the same
// flush and after the commit. It reads the rows as the waiter's check would, so the waiter's
// sidecar need not ask. It may be believed:
//
//   - The grant is committed, because the word is read from committed rows. A commit that no
//     standby has confirmed counts, too, if its wait was cancelled: see Failover. So a release of
//     more than 100 ms sends a hint, because this package cancels no shorter wait. If another
//     session does (pg_cancel_backend), a waiter can hear of a grant that a failover forgets.
//   - While its waiter waits, only readers of the rows know the whole attempt id, 122 random bits.
//     Hints name the first half (words.go). Ids that others can derive from a request_id are not
//     sent in full. A role that may read grant_id could forge a grant; see Rights.
//   - A late or repeated word finds no waiter: the attempt has an id of its own, and its end
//     releases the grant.
//   - The lock is held under the waiter's own renewed lease, which the sidecar trusts until its own
//     deadline. If the lease was reaped meanwhile, that is past. A bind:ttl lock gets only a hint,
//     because its time runs from the grant.
//   - A break between the grant and the word leaves a signal, which waits for the grant.
//
// All else is a hint: what a reap, a withdrawal or a release of a bind:ttl lock hands over, and that
// there are signals. The checks that come with renewals make up for a lost word.
//
// A repeated release sends its news again, because answer and news may be lost. A client can repeat
// the release of a bind:ttl lock as often as it likes, so such news are hints, at most one a second.
//
// Events of watched keys (watch.go, event.go) are sent in full, by one statement that finds the
// watchers. The statements that change a lock say whether there are any.
//
// # Signals
//
// A row in the table signals asks a session to stop, or to give its lock up. Its sidecar reads it
// after a hint, or with the next renewal. A break of a lock that no session claims reaps its lease.
//
// # The sweep
//
// The sweep reads the tables leases and locks page by page (sweep.go, code/sweep.sql), because an
// index would make every grant more expensive. All sidecars share one row with the next page and the
// time of the next step, and none waits for another.
//
// # The fleet
//
// Stats reads every lock in one statement, so it is for people, and for one instance on behalf of
// all. The row of the table fleet says which, and until when. After a failover two may count.
//
// # Metrics and spans
//
// Each statement is measured by its name, from when there is a connection for it (telemetry.go).
// It is a span if the context has a recorded one. A hand-off writes the release's trace context into
// the lock row (handed_by), where the waiter's sidecar finds it.
//
// # Failover
//
// A promoted standby can miss the last answers, with tokens and renewals, and has another clock.
// The first statement that would grant, renew or reap there finds that the server is not the one
// in locksidecar.meta, and fails. Then tokens jump beyond another server's clock, and every lease
// gets its TTL once more (new_epoch). The epoch has a new name (meta.history), which each lease
// notes when it is opened. A renewal names leases of another history. There is no index by lease.
// So the sidecar verifies the locks that it believes in by their keys (HeldUnder), on the renewals'
// connection, because no lease is trusted before. Then it moves them and its waiters to leases of
// this history (Move), and revokes the old ones, with what nobody knows. A session's lock is
// therefore claimed by its instance, and not by one lease.
//
// All sidecars tell servers apart in one way (meta.source): by the timeline, which only a promotion
// or a recovery changes. If the server refuses that, by the time of its start, which is the same
// through each connection, pooler and socket. An epoch too many costs tokens, and a TTL without
// reaps. An epoch too few costs the promise.
//
// An asynchronous standby can miss a grant that its holder's sidecar believes in. That sidecar gives it
// up when it has reached the new server (HeldUnder). Otherwise it trusts the lease until its deadline,
// which is less than the TTL after the old server's last answer, by the sidecar's monotonic clock. So
// new_epoch begins a quiet time, by the new server's clock: nothing is granted for the longest TTL in
// use. The five statements that grant read its end with the epoch: acquire_one, acquire_session,
// acquire_many, and the functions ask and pass_on. A key with waiters and without a holder is kept by
// a pending hold (keep_quiet), so the waiters' checks hand it over in order when the quiet time is
// over.
//
// The new server learns the TTLs from its leases, and from notes (quiet_ttls) that are older than
// leases that it misses: lease_open writes note and lease in one transaction, and the log is replayed
// in its order. If a TTL is longer than all noted ones, and the standby missed its note, the quiet
// time is too short for the grants under it. Leases of sidecars that are told to be quick, or that have
// a synchronous standby, are neither noted nor counted (failover_forgets). Nobody watches the holder of
// a bind:ttl lock, so these locks are not waited for.
//
// If commits wait for a synchronous standby, a failover to it loses no answer. A cancelled wait
// leaves its rows for all to see, and the outcome unknown (errors.go). So if a repeat or check
// finds a grant of its own by reading, it waits for the standby once more (replicated).
//
// The old primary can come back and take writes. A sidecar that has seen the later one does not
// connect to it (timeline.go): its own newer locks would be unknown there, and without a standby
// it would be granted old tokens. The token that began the epoch says which is later, because each
// promoted or restored server jumps beyond it. The sidecar also notes that on the old one
// (outdate), which then grants and renews nothing until an operator makes it the primary again
// (restored). Of several hosts, one that is no copy of the one before is refused, because the
// locks of one are free at the other.
//
// A restored backup is the same in all respects. A recovered one has another timeline. A row-by-row
// copy (pg_dump, replication) has another mark, a column of meta that no copy takes along. Files
// that are put back and started show nothing, so an operator says it (restored). The first token of
// a key is the clock, so a new schema continues after a lost one.
//
// # Upgrades
//
// Sidecars of two releases share a database. A migration (migrate.go) never waits long for a table,
// because all others would queue behind it. It gives up after less than their lock_timeout, and
// tries again. The statements that take something carry the schema that they were written for, and
// take nothing if a migration says that this is too old (may_take). A renewal tells it to sidecars
// that only hold. A sidecar may keep, renew and release what it has.
//
// If the schema is older than this package, though a newer one was there, it is a backup. Renewals,
// and statements that miss a column, table or function, notice it. Then nothing is done in it until
// it is migrated.
//
// # Connections
//
// Renewals have their own connection, so that a burst of acquires lets no lease die. LISTEN has
// another one, because a flood of words, which everybody can send, must not delay renewals. The
// others share the rest. Each connection is set up so that a database's defaults cannot weaken locks
// (connect.go). A pooler can give every transaction to another session. Then statements have no
// names, settings go with each transaction in the same flush, and hand-offs of other instances are
// polled for, unless LISTEN has its own URL (direct.go). The server there is not trusted before it
// is known to be the store's, and a word to oneself shows that words arrive.
//
// Before each new connection the URL is read again, with the files that it names (server.go), so a
// password can be replaced while locks are held. The old login is used until the server accepts the
// new one, so the file may change first. Hosts and database may not change, because some connections
// would find other locks there.
//
// # Rights
//
// On a current schema, a role needs USAGE on the schema, EXECUTE on the functions, and SELECT,
// INSERT, UPDATE, DELETE on the tables, but on meta only SELECT (deploy/roles.sql). For Stats, USAGE
// and SELECT are enough, without the columns grant_id: a reader of those could forge hand-offs.
package postgres
