// Package postgres keeps locks in a PostgreSQL database, version 14 or later.
//
// # Where what is decided
//
// The database decides, by its own clock, and this package only asks. A grant is
// one row of locksidecar.locks naming a lease, and nothing is told to anybody
// before the statement that wrote it is committed and read to its end: rows of
// RETURNING arrive before the commit. Every statement is a transaction of its own.
// What takes more than one statement is a function in the database
// (code/), so that a pod that is cut off in the middle leaves no row locked. The
// statements are in queries/, each with its name and the invariant that it serves,
// and the tables are in schema/.
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
// # Places in line
//
// Each commit is flushed before anybody is told of it, but that of a statement by which
// calls only stand in line (the function ask): it has locked the row that the next release wants, and a flush
// takes longer than all else that it does. So a crash, or a failover to a synchronous standby,
// can forget a waiter that was told that it waits. Why nothing else comes of that:
//
//   - What a server knows after a crash is all that was committed until some moment, and
//     nothing after. Who writes because of a waiter commits after it. So no grant, mark or count is
//     left of a waiter that is forgotten, and no waiter without its mark (contended): they
//     are one transaction. What is forgotten had not happened, for all that others know.
//   - A place in line is nothing that anybody acts on. A grant is told when its own commit is
//     flushed, and with it all that was before. A cancel waits, too: a waiter that came back
//     after it would be granted the lock for nobody. One that finds the place with another
//     instance, where the attempt was repeated, writes nothing: so a place that moves is flushed.
//   - Its sidecar finds out. Whatever forgets a commit breaks connections, and who listens
//     again looks after all waits; where nobody listens, they are looked after in each
//     poll interval; and with each renewal anyway. A row that is gone and is no grant means
//     that the call stands in line again, behind those who came meanwhile.
//   - A server without its standby tells of places, too, as it tells of whatever can be read.
//     It renews no lease, so its waiters lose theirs: with the next renewal, or when they expire.
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
// it does nothing (clock.go; in_time). That time is the
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
// What a release hands over is told whole (the statement tell), by a statement that goes to the
// server in one flush with the release and is carried out when that is committed. It reads
// what is there then, as the check of the waiter would, so the waiter's sidecar need not
// ask. Why such a word may be believed:
//
//   - It was sent when the grant was committed: it is read from the committed rows. A commit
//     that no standby has confirmed counts, too, when somebody cancels its wait for a
//     synchronous standby: see Failover. So a word is hinted at only, where the release took
//     longer than a tenth of a second: this package cancels no wait that was shorter. Whoever
//     else does (pg_cancel_backend) can let a waiter hear of a grant that a failover forgets.
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
// All else is only hinted at: what a burial or an undo hands over, what a release of a
// bind:ttl lock does, who is to look for whatever reason, and that there are signals. A word
// that is lost is made up for by the checks that come with the renewals.
//
// A release that is repeated tells its news again, for its answer was lost, and the news
// perhaps, too. A session's lock is released by its sidecar, which knows when to repeat that.
// For a bind:ttl lock the sidecar says what a client said: any token of any key, as often as
// it likes. So what such claims repeat is told once a second at most, and only hinted at: no
// client can make a server notify at will by them.
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
// # The sweep
//
// The sweep reads the tables leases and locks page by page (sweep.go, code/sweep.sql). It finds free keys whose rows are to be deleted, expired leases, locks of dead
// leases, and marks of watches that are over. So the tables need no index for it, which
// would make every grant more expensive, and a step takes equally long in small and in large
// tables. One row has the next page and the time of the next step. All sidecars share that row,
// and none waits for another. If a step fails, the next sidecar that comes repeats it.
//
// # The fleet
//
// Stats reads every lock, in one statement (queries/sweep.sql), so it is for people, and for
// one instance of all: the row of the table fleet says which, until when, and its lock
// decides between those who want to be. No lock depends on it: two that believe to be
// elected, after a failover, count twice.
//
// # Figures and spans
//
// Every statement is measured, by its name, from when there is a connection
// for it (telemetry.go). It is a span where the context has one that is recorded, and only
// there: what sidecars do by themselves begins no traces. A span has the statement's text,
// which is the same each time, and never its arguments. When a release hands a lock over,
// its trace context goes into the lock row with the grant (handed_by), so that the
// waiter's sidecar finds it there; every other grant empties it.
//
// # Failover
//
// A promoted standby may miss what was last told, tokens and renewals among it, and
// has another clock. The first statement that would grant, renew or bury there finds that
// the server is not the one in locksidecar.meta, and fails; then tokens jump, and
// every lease gets its TTL once more (new_epoch). What follows has
// another name (meta.history), which each lease notes. Who renews a lease of another
// history hears so, until it knows what rides on it (Recounted). There is no index for that.
// What a sidecar believes in is read by the keys (Riders), on the renewals' connection, for
// no lease is trusted before. What it does not know is looked for under all keys, a part
// of them by each statement (RidersAfter), by one sidecar at a time: an advisory lock of the
// transaction says whose turn it is.
//
// All sidecars tell servers from each other by the same (meta.source): by the timeline, which
// only a promotion or a recovery changes. Where the server refuses that, by when it was
// started, which is the same through each connection, pooler and socket, and no other
// server's. A false new epoch costs tokens and a TTL without burials, one that is missed costs
// the promise. The function here asks. It is plpgsql, so that a source needs no right to the
// functions of the others.
//
// Where commits wait for a synchronous standby, nothing that was told is missing after a
// failover to it. A wait that is cancelled leaves what it has written for all to see, and
// the outcome unknown (errors.go). So whoever finds a grant of its own by reading, in a
// repeat or a check, waits for the standby once more (replicated).
//
// The primary that was may be there again, and take writes. Without its standby it confirms
// none. Who has seen the later one connects to the old one no more (timeline.go): it would
// be told that it does not hold what it was granted meanwhile, and without a standby it would be
// granted locks with tokens of before. Which of two is later, the token says after which its
// epoch began: whatever is promoted or restored jumps beyond it. It says so on the old one
// (outdate), for those who have not seen the later one: nobody is granted or renewed
// anything there, until an operator says that it is the primary again (restored). Nor does who knows one of several
// hosts go to another that is no copy of it: locks of the one are free at the other. Of
// several hosts each has a second to answer, so that a machine that hangs does not keep
// others from their turn.
//
// A backup that is restored is the same in all respects. One that is recovered has another
// timeline. One that is copied row by row, by pg_dump or replication, has another mark: a
// column of meta that no copy takes along. What comes back as files, and is started as it
// was, shows nothing: an operator says so (the function restored). Tokens begin by the clock,
// so a schema that is made anew goes on where a lost one was.
//
// # Upgrades
//
// Sidecars of two releases share a database. A migration (migrate.go) never stands in line
// for a table: all others would stand behind it. It gives up after less than their own
// lock_timeout, and tries again. What locksidecar.meta says is asked where it counts: the
// statements that take something carry the schema that they were written for, and take
// nothing when a migration has said that this is too old (may_take); a renewal hears of it,
// for who only holds. What a sidecar has it may keep, renew and give back.
//
// A schema that is older than this package, though a newer one was there, is a backup. A
// renewal and whatever does not find its column, table or function hear of it. Nothing is
// done in it then, and leases end at their deadlines, until somebody has migrated it.
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
// and hand-offs of other instances are polled for, unless LISTEN has a URL of its own
// (direct.go). What that one leads to is believed in nothing, not even in the time, before
// it is known to be the store's database; and that it is heard there what is sent through
// the pooler is shown by a word to oneself, as anywhere.
//
// Before each new connection the URL is read again, with the files that it names
// (server.go): a password is replaced while locks are held. Another login is used once the
// server has let it in, and until then the one before, so that the file may be first to
// change. Who is not let in costs nobody else a connection. Only hosts and database may not
// change: some connections would find other locks there.
//
// # Rights
//
// A role that may not create anything runs on a current schema with USAGE on the
// schema and the sequence, EXECUTE on the functions, and SELECT, INSERT, UPDATE,
// DELETE on the tables, but of meta only SELECT (deploy/roles.sql). The tests of this package
// run so. For Stats, USAGE and SELECT are enough, and not of the columns grant_id: who reads
// those of waiting calls could forge a hand-off to them, so such a role must be trusted as the
// sidecars' own.
package postgres
