// Package postgres keeps locks in a PostgreSQL database, version 14 or later.
//
// # Who decides
//
// The database decides by its own clock, and this package asks. A grant is a row of
// locksidecar.locks that names a lease. Nothing is answered before the statement is committed and
// read to its end, because rows of RETURNING arrive before the commit. Each statement is a
// transaction of its own. A flow of more than one statement is a function in the database (code/),
// so that a pod that is cut off in the middle leaves no row locked. The statements are in
// queries/, each with its name and the invariant that it serves. The tables are in schema/.
//
// A lock is not held if its lease is missing or has expired. So the death of a holder is one
// deleted row, however many locks are held under the lease. Only keys with waiters need more, the
// hand-off. The next acquire or the sweep finds the others.
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
//   - Expired is not dead. A renewal may be in flight. To reap (reap.go) is to delete the lease if
//     it is still expired when its row is locked.
//   - Not deleted is not alive. Another session may have reaped it: look.
//   - Failed is not undone. An error from the server means that nothing was done. A connection that
//     breaks after the statement was sent means nothing at all (errors.go). A repeat with the same
//     grant id finds out.
//
// # Acquire
//
// The first statement takes what is free, and waits for at most one row. The rest is read: a
// living holder is the answer. A dead one is reaped in a transaction of its own, its keys with
// waiters are handed off, and then the function ask takes the rest. It locks each row before it
// looks whether the holder's lease exists. Ask also enqueues. A statement that waits for a lock
// row never decides by the absence of a lease: it would see the time before its wait, and steal a
// live lock.
//
// A repeat with the same grant id waits for the attempt that may be in flight, and is refused by
// the first statement like any other. Then the read finds its grant, with token, lease and time as
// they were.
//
// # Queue positions
//
// A commit is flushed before it is answered, except if calls are only enqueued (the function ask):
// that statement has locked the row that the next release needs, and a flush takes longer than all
// else. So a crash, or a failover to a synchronous standby, can forget a waiter that was told that
// it waits. This does no harm:
//
//   - After a crash the server knows all commits up to some moment, and none after. What is written
//     because of a waiter is committed after it. So no grant, mark or count is left of a forgotten
//     waiter. The waiter and its mark (contended) are one transaction.
//   - Nobody acts on a queue position. A grant is answered when its own commit is flushed, and all
//     earlier ones with it. A cancel is flushed, too, because a waiter that came back after it
//     would be granted the lock for nobody. A position that moves to another instance is flushed,
//     because the first instance then cancels without a write.
//   - Its sidecar finds out. A crash breaks connections, and a listener that connects again checks
//     all waits. Without a listener, each poll does, and each renewal does in any case. If the row
//     is gone and there is no grant, the call is enqueued again, at the end.
//   - A server without its standby also tells of positions. It renews no lease, so its waiters lose
//     theirs.
//
// # Outcomes and min_hold
//
// A successful release marks the waiters that it skips, in its transaction. They wait no more, and
// their rows stay until their sidecars have read them or their leases are dead.
//
// A lease with a min_hold is not deleted before the hold is over. A release or a reap sets
// hold_pending instead. Then the lease expires when the hold is over, and is reaped like any
// other. Only this one lock is held under it, so it is locked after the lock row. A release
// forgets the grant and a reap does not, so later claims hear the difference. Statements of
// sessions without min_hold never look at it: these locks go through the functions. A lease for
// one key only (min_hold, bind:ttl) notes the key, so a reap looks there and not at all keys with
// waiters. A break of a session's lock first ends its hold, because its sidecar may be gone: then
// the lock is free when the lease ends.
//
// # What comes too late
//
// An attempt of unknown outcome is withdrawn. Its statement may still lie in a buffer and run
// later. So each statement that takes something, or gives something up by a grant id, has a time
// of the database's clock after which it does nothing (clock.go, in_time): the limit of its
// operation. A withdrawal is final if it is repeated when the attempt is two limits old, one for
// the statement to begin and one for it to end.
//
// # Locked rows
//
// This package locks a row for milliseconds. Other sessions can lock it for hours. A statement
// waits 100 ms for a row. Then it runs without the items whose rows are locked, and those are
// answered as such (locked.go). Callers ask again for these alone.
//
// # News
//
// A waiter of this instance gets its grant directly. Another instance gets a NOTIFY after the
// commit, in a transaction that writes nothing, because NOTIFY makes all commits of the server
// that notify wait for each other. In the releasing transaction, all hand-offs of a server would
// wait for the disk one after another, and another program's slow NOTIFY could fail a release. A
// broken connection loses words, and everybody may send and hear them. LISTEN has a connection of
// its own while there is something to hear (listen.go). When it breaks, all waits, signals and
// watched keys are checked.
//
// A release delivers the grant of its hand-off in full (the statement notify_grants), by a
// statement in the same flush that runs after the commit. It reads the rows as the waiter's check
// would, so the waiter's sidecar need not ask. It may be believed:
//
//   - The grant is committed, because the word is read from committed rows. A commit that no
//     standby has confirmed counts, too, if its wait was cancelled: see Failover. So only a hint is
//     sent if the release took more than a tenth of a second, because this package cancels no
//     shorter wait. If another session does (pg_cancel_backend), a waiter can hear of a grant that
//     a failover forgets.
//   - While its waiter waits, only readers of the rows know the whole grant id, 122 random bits.
//     Hints name the first half (words.go). When the whole id is sent, the lock is granted. Ids
//     that others can derive from a request_id are not sent in full. A role that may read grant_id
//     could forge a grant; see Rights.
//   - A late or repeated word finds no waiter: the attempt has an id of its own, and is over when
//     it was granted, cancelled, timed out, or lost its lease. Its end releases the grant, as any
//     other that nobody wants.
//   - The lock is held under the waiter's own renewed lease, and the sidecar trusts that until its
//     own deadline. Of a lock under another lease (bind:ttl, min_hold) only a hint is sent, because
//     its time runs from the grant. A lease that was reaped meanwhile had expired by the database's
//     clock, so it is past the deadline.
//   - A break between the grant and the word leaves a signal, which waits for the grant. A failover
//     that forgets the commit forgets it after any answer.
//
// All else is a hint: what a reap or a withdrawal hands over, what a release of a bind:ttl lock
// does, and that there are signals. The checks that come with renewals make up for a lost word.
//
// A repeated release sends its news again, because the answer and perhaps the news were lost. A
// sidecar knows when to repeat the release of a session's lock. The release of a bind:ttl lock
// says what a client says, as often as it likes. So the news of such repeats are only hints, at
// most one a second.
//
// Events of watched keys (watch.go, event.go) are sent in full, by one statement that finds the
// watchers. The statements that change a lock say whether there are any. Nothing is sent for other
// keys.
//
// # Signals
//
// A row in a table asks a session's holder to stop, or to give the lock up. Its sidecar reads it
// when it gets the hint, and at the latest with the next renewal (signals.go). A break of a lock
// that no session claims reaps its lease.
//
// # The sweep
//
// The sweep reads the tables leases and locks page by page (sweep.go, code/sweep.sql). It finds
// rows of free keys to delete, expired leases, locks of dead leases, and marks of watches that are
// over. So the tables need no index for it, which would make every grant more expensive, and a
// step takes equally long in small and large tables. All sidecars share one row with the next page
// and the time of the next step, and none waits for another. If a step fails, the next sidecar
// repeats it.
//
// # The fleet
//
// Stats reads every lock in one statement (queries/sweep.sql), so it is for people, and for one
// instance on behalf of all. The row of the table fleet says which, and until when. No lock
// depends on it: after a failover two may believe to be elected, and count twice.
//
// # Metrics and spans
//
// Each statement is measured by its name, from when there is a connection for it (telemetry.go).
// It is a span if the context has a recorded one: background work begins no traces. A span has the
// statement's text, and never its arguments. When a release hands a lock over, its trace context
// goes into the lock row with the grant (handed_by), where the waiter's sidecar finds it. Every
// other grant empties it.
//
// # Failover
//
// A promoted standby can miss the last answers, with tokens and renewals, and has another clock.
// The first statement that would grant, renew or reap there finds that the server is not the one
// in locksidecar.meta, and fails. Then tokens jump, and every lease gets its TTL once more
// (new_epoch). The epoch has a new name (meta.history), which each lease notes. A renewal of a
// lease with another history says so until its sidecar has reconciled it (Recounted). An index by
// lease would make every grant more expensive. So the sidecar reads the locks that it believes in
// by their keys (Riders), on the renewals' connection, because no lease is trusted before. Locks
// that it does not know are sought among all keys, a page at a time (RidersAfter). An advisory
// lock lets one sidecar at a time read.
//
// All sidecars tell servers apart in one way (meta.source): by the timeline, which only a
// promotion or a recovery changes. If the server refuses that, by the time of its start, which is
// the same through each connection, pooler and socket. An epoch too many costs tokens, and a TTL
// without reaps. An epoch too few costs the promise.
//
// If commits wait for a synchronous standby, a failover to it loses no answer. A cancelled wait
// leaves its rows for all to see, and the outcome unknown (errors.go). So if a repeat or check
// finds a grant of its own by reading, it waits for the standby once more (replicated).
//
// The old primary can come back and take writes. Without its standby it confirms none. A sidecar
// that has seen the later one does not connect to the old one (timeline.go): there it would hear
// that it does not hold what it was granted meanwhile, and without a standby it would be granted
// old tokens. The token that began the epoch says which is later, because each promoted or
// restored server jumps beyond it. The sidecar also says so on the old one (outdate). Then nobody
// is granted or renewed anything there, until an operator makes it the primary again (restored).
// Of several hosts, one that is no copy of the one before is refused, because the locks of one are
// free at the other. Each host has a second to answer, so that one that hangs does not keep others
// from their turn.
//
// A restored backup is the same in all respects. A recovered one has another timeline. A
// row-by-row copy (pg_dump, replication) has another mark, a column of meta that no copy takes
// along. Files that are put back and started show nothing, so an operator says it (restored).
// Tokens begin by the clock, so a new schema continues after a lost one.
//
// # Upgrades
//
// Sidecars of two releases share a database. A migration (migrate.go) never waits long for a
// table, because all others would queue behind it. It gives up after less than their lock_timeout,
// and tries again. The statements that take something carry the schema that they were written for,
// and take nothing if a migration says that this is too old (may_take). A renewal tells it to
// sidecars that only hold. What a sidecar has it may keep, renew and release.
//
// If the schema is older than this package, though a newer one was there, it is a backup.
// Renewals, and all statements that miss a column, table or function, notice it. Then nothing is
// done in it, and leases end at their deadlines, until it is migrated.
//
// # Connections
//
// Renewals have a connection of their own, so that a burst of acquires lets no lease die. LISTEN
// has another one: everybody who may connect to the database may send words to any channel, and a
// session receives all of them before its next answer. A flood of words must not delay renewals.
// The others share the rest. Each connection is set up so that a database's defaults cannot weaken
// locks (connect.go). A pooler can give every transaction to another session. Then statements have
// no names, settings go with each transaction in the same flush, and hand-offs of other instances
// are polled for, unless LISTEN has a URL of its own (direct.go). The server there is not trusted,
// not even for the time, before it is known to be the store's. A word to oneself shows that words
// sent through the pooler arrive.
//
// Before each new connection the URL is read again, with the files that it names (server.go), so a
// password can be replaced while locks are held. A new login is used once the server accepts it,
// and until then the old one, so the file may change first. A refused login costs no one else a
// connection. Only hosts and database may not change, because some connections would find other
// locks there.
//
// # Rights
//
// On a current schema, a role needs USAGE on the schema and the sequence, EXECUTE on the
// functions, and SELECT, INSERT, UPDATE, DELETE on the tables, but on meta only SELECT
// (deploy/roles.sql). The tests of this package run so. For Stats, USAGE and SELECT are enough,
// without the columns grant_id: a reader of those could forge a hand-off to waiting calls, so it
// must be trusted like a sidecar.
package postgres
