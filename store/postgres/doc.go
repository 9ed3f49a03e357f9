// Package postgres keeps locks in a PostgreSQL database, version 13 or later.
//
// # Where what is decided
//
// The database decides, by its own clock, and this package only asks. A grant is
// one row of locksidecar.locks naming a lease, and nothing is told to anybody
// before the statement that wrote it is committed and read to its end: rows of
// RETURNING arrive before the commit. Every statement is a transaction of its own.
// What takes more than one statement is a function in the database
// (migrations/00002_functions.sql), so that a pod that is cut off in the middle
// leaves no row locked. SQL stands in sql/, one statement a file, each with the
// invariant that it serves.
//
// A lock whose lease is missing, or has expired, is not held. That is all there is
// to a holder's death: burying its lease is one deleted row, however many locks
// rode on it. Only the keys for which somebody waits need more, the hand-off; the
// others are found dead by the next one who asks for them, or by the sweep.
//
// # Three answers that are easily confused
//
//   - Expired is not dead. A renewal may be under way. To bury (bury.go) is to
//     delete the lease's row if it is still expired once its row lock is had.
//   - Not deleted is not alive. Somebody else may have buried it: look.
//   - Failed is not undone. An error that the server sent means that nothing was
//     done; a connection that broke after the statement was sent means nothing at
//     all (errors.go). Repeating with the same grant id finds out.
//
// # Acquire
//
// The first statement takes what is free and never waits longer than for one row.
// What it did not take is read: a living holder is the answer. A dead one is
// buried, in a transaction of its own, the keys that somebody waits for are handed
// off, and then the function ask takes what is left, with each row locked before
// it looks whether the holder's lease is there. Ask is also what stands in line.
// A statement that waits for a lock row never decides by the absence of a lease:
// it would look with the eyes it had before it waited, and steal a live lock.
//
// A repeat with the same grant id is refused by the first statement as any other,
// after waiting for the attempt that may be under way; the read then finds its own
// grant, with token, lease and time as they were.
//
// # Outcomes and holds
//
// A waiter that a successful release skips is marked, in the transaction of the release:
// from then on it is no waiter, for any count or hand-off, and its row is only there to
// be read, until its own sidecar forgets it or its lease is dead.
//
// A lease with a hold is not deleted before the hold is over. Whoever would end it, by a
// release or a burial, lets it stand instead: it expires exactly when the hold is over,
// and is buried then like any other. Nothing rides on it but this one lock, so that it is
// locked behind the lock row. What differs is what later claims hear: a release forgets
// the grant, a burial does not. Statements of sessions without such things never look
// at holds: these locks take the way through the functions. Leases that hold one key only,
// of a hold or of a bind:ttl lock, note it, so that a burial looks there and not at all
// keys for which somebody waits. To break a session's lock ends its hold before it is
// given up: its sidecar may be gone, and then the lock is free when the lease ends.
//
// # What comes too late
//
// An attempt whose outcome is unknown is undone. It may still lie in somebody's
// buffer, and be carried out afterwards; so every statement that takes or gives
// something up by a grant id carries a time, by the database's clock, from which on
// it does nothing (clock.go; in_time in the migrations). That time is the
// operation's own limit. Who undoes once more when the attempt is two limits old
// (one for the statement to begin, one for it to end) has the last word.
//
// # Stuck rows
//
// Our transactions have a row for milliseconds. Somebody else's may have it for
// hours: a statement waits for a row for 100 ms, then it is carried out without the
// items whose rows are locked in that moment, and those are answered as stuck
// (stuck.go). Callers ask again for these alone.
//
// # News
//
// A waiter of this instance is told of its grant directly. Another instance is sent
// a NOTIFY, after the commit and in a transaction that writes nothing, for NOTIFY
// keeps the whole server's commits in line, for as long as a commit takes: in the releasing
// transaction, all hand-offs of a server would wait for the disk one after the other, and a
// release could fail because another program's NOTIFY is slow. Words are lost when a
// connection breaks, and anybody may send them and hear them. LISTEN has a connection of its
// own while there is something to hear (listen.go); when it breaks, everybody is told to
// look at all waits, signals and watched keys.
//
// What a release hands over is told whole (sql/tell.sql), by a statement that goes to the
// server in one flush with the release and is carried out when that is committed. It reads
// what is there then, as the check of the waiter would, so the waiter's sidecar need not
// ask. Why such a word may be believed:
//
//   - It was sent when the grant was committed: it is read from the committed rows. A commit
//     that no standby has confirmed counts, too: whose wait for a synchronous standby is
//     cancelled has released with an unknown outcome (errors.go), while the row is there
//     for all to see, and the waiter hears of its grant, as a check would read it. A
//     failover at that moment may forget that grant, told or read.
//   - Only who has read the rows knows the whole id of a grant, 122 random bits, while its
//     waiter waits. Hints name the first half of it (words.go): enough to look, and no
//     more. When the whole id is in a word, for all who listen to hear, its waiter has been
//     granted the lock. Ids that others can derive, from a request_id, are not told whole.
//     A role that may read grant_id could forge a grant; see Rights.
//   - A word that comes twice, or late, finds no waiter: an attempt has an id of its own,
//     and is over when it has won, was cancelled, timed out, or has lost its lease. Then
//     whoever ended it releases what it was granted, as after any grant that nobody wants.
//   - A grant rides on the waiter's own renewed lease, and the sidecar believes in that
//     until its own deadline, and no longer. What rides on another one (bind:ttl, min_hold)
//     is only hinted at: its time runs since the grant. A lease that was buried meanwhile
//     had expired by the database's clock, so it is past the deadline here.
//   - Who breaks the lock between the grant and the word leaves a signal, which waits for
//     the grant to arrive. A failover that forgets the commit forgets it after any answer.
//
// All else is only hinted at: what a burial or an undo hands over, who is to look for
// whatever reason, and that there are signals. A word that is lost is made up for by the
// checks that come with the renewals.
//
// Events of watched keys (watch.go) are told in the same way, whole (event.go), by one
// statement that finds who watches: the statements that change a lock say whether anybody
// does, and nothing is sent when nobody does.
//
// # Signals
//
// A session's holder is asked to stop, or to give a lock up, by a row in a table that its
// sidecar reads: when it is told, and at the latest when it renews the lease (signals.go).
// To break a lock that no session claims is to bury its lease.
//
// # The fleet
//
// Stats reads every lock, in one statement (sql/stats.sql), so it is for people, and for
// one instance of all: the row of the table fleet says which, until when, and its lock
// decides between those who want to be. No lock depends on it: two that believe to be
// elected, after a failover, count twice.
//
// # Figures and spans
//
// Every statement is measured, by the name of its file, from when there is a connection
// for it (telemetry.go). It is a span where the context has one that is recorded, and only
// there: what sidecars do by themselves begins no traces. A span has the statement's text,
// which is the same each time, and never its arguments. When a release hands a lock over,
// its trace context goes into the lock row with the grant (handed_by), so that the
// waiter's sidecar finds it there; every other grant empties it.
//
// # Failover
//
// A promoted standby may miss what was last told, tokens and renewals among it, and
// has another clock. The first statement that would grant or bury there finds that
// the timeline is not the one in locksidecar.meta, and fails; then tokens jump, and
// every lease gets its TTL once more (new_epoch in the migrations).
//
// # Connections
//
// Renewals have a connection of their own, so that a burst of acquires does not
// let leases die, and LISTEN has one. These two are not the same: whoever may connect to
// the database may send words to any channel, and a session is sent all of them before it
// carries out what it is asked next. A flood of words delays news, and must not delay
// renewals. A renewal never waits for a lease while it has
// another locked, so others may lock leases in any order. The others share the rest. Each connection is
// set up so that a database's defaults cannot weaken locks (connect.go). Behind a
// pooler that gives every transaction to another session, nothing is kept in one:
// statements have no names, settings go with each transaction, in the same flush,
// and hand-offs of other instances are polled for.
//
// # Rights
//
// A role that may not create anything runs on a current schema with USAGE on the
// schema and the sequence, EXECUTE on the functions, and SELECT, INSERT, UPDATE,
// DELETE on the tables, but of meta only SELECT. For Stats, USAGE and SELECT are enough, and
// not of the columns grant_id: who reads those of waiting calls could forge a hand-off to
// them, so such a role must be trusted as the sidecars' own.
package postgres
