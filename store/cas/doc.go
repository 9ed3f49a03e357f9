// Package cas is the lock store for servers that can swap a record if it has not changed. A [Backend] is such a
// server: store/etcd, store/mysql and store/redis are. A [Readiness] checks it. Who writes another one needs only backend.go, server.go, readiness.go, and
// package castest, which tests it. The protocol is that of store/key, as in store/memory, so all engines keep the same promises.
//
// # An acquire of a free key, from top to bottom
//
// With Redis as the server. On another one, only the lines of store/redis differ.
//
//	calls.go Acquire             a job for each key: what to do with it, and what is known of its record (job.go)
//	run.go run                   rounds, until each job has its answer
//	run.go assume                the record is as this instance remembers it; if it does not, the key has none yet
//	run.go round                 one round, with the next steps:
//	run.go turns, step           - What does a job need: a read, a swap, or nothing more? Here a swap, because the record changes.
//	turn.go take, tryWith, begin - To know that, the key machine runs on the record, once for each item of the job:
//	store/key ask.go Acquire, ask  the steps Repeat, Skipped, Lease, Available? and Grant
//	turn.go Token                  a grant has a provisional token, because only the swap tells it
//	swap.go send                 - One request has the swaps of all jobs. Before it, leases are opened that the grants need (bind:ttl, min_hold).
//	store/redis swap.go Swap       the swaps of each partition, as one list
//	store/redis call.go call       one call of the function swap in functions.lua: is the version as expected, do the leases live, is it no quiet time?
//	store/redis errors.go classify without an answer: what was certainly not done, and what may have been
//	swap.go answered             - Refused: the job needs another round, at once, with the record that the answer has brought.
//	swap.go carriedOut           - Done: the answer gets its token, and the record is remembered.
//
// If the key is held, the answer is Held. It changes nothing, so it needs a read, and is never given from memory. Or the call is an Enqueue: then
// the machine adds a waiter to the record (store/key queue.go enqueue), and that is swapped.
//
// # Flows
//
// All flows go this way: they begin in calls.go, and run, round and step are the same for each. What differs is the method of the
// key machine that the items of a job call, and what follows from it:
//
//	an acquire of a held key   run.go step: no answer is given from memory; run.go load, proved
//	a wait                     calls.go Enqueue; Check, if no news came
//	a hand-over                the machine hands off (store/key settle.go handOff), in whatever operation it has to; letter.go letters: the news go with
//	                           the swap. There: store/redis letters.go hear, pass; letter.go receive. In this instance: swap.go tellOwn
//	a release                  calls.go Release; turn.go Close: the lock's own lease is revoked after the swap
//	a renewal                  store.go Renew, extend: one request for all views (store/internal/gather). store/redis lease.go Renew: of it, one call of the
//	                           function renew in each partition. own.go noteRenewal: which leases have signals, and which are of another history
//	the end of a lease         store.go Revoke; own.go under: the keys that it may hold; sweep.go visit. Or, in the next operation on a key, turn.go reap
//	a sweep                    sweep.go Sweep: elect.go; then pages (scan.go), each with sweepPage
//	an unknown outcome         swap.go send; own.go doubt. Of an ask: calls.go Withdraw with bump. Of a release: calls.go Release again; what it reads or swaps
//	                           makes the late swap fail. Then own.go learn, decided
//	rivals for a key           swap.go answered; way.go lettersForWay; there: way.go givesWay, giveWay
//	a quiet time               swap.go answered: the job tells it to the machine (key.Op.Quiet); quiet.go shows it
//	a failover                 store.go Renew; then move.go HeldUnder, Move
//
// record.go and encode.go are the form of a record; scan.go, elect.go and tokens.go are reads of all records, elections, and moves to
// another store. await.go tells a backend that must do something for letters when they are needed. backend.go is the contract of a backend, and server.go and
// readiness.go help to fulfil it.
//
// # Views
//
// A [Server] is what the views of a process share of a backend, and a [Backend] is one view's part. The views of a [Space] also share the memory of
// records, the known quiet time, and, if the Server has a Renew, the requests that renew leases. If the Server has few Connections, the views take
// them in turn (fair.go).
//
// # Operations
//
// Each key has one record: its holders, waiters, skipped waiters and watchers, the leases that they name, and the last
// token. An operation takes the record, runs the key machine on it, and swaps the result for the record. If the record
// has changed meanwhile, the server returns the present one, and the operation runs again. So an acquire of a free key
// and a release need one round trip each. A hand-off is one swap that also carries the letter to the next holder's
// instance.
//
// The operations of one call go together: one read of all records that must be read, and one request with all swaps.
// Acquires and releases that are waiting share a call (AcquireAndRelease, by batcher/join.go), because a request costs a server much, and a swap in it little.
// Only those that failed go into the next round, at once: whoever pauses loses to an instance that does not.
//
// The first try may use a record that this instance remembers, or believe that a key without one is free. The swap
// tells whether that was right. An answer that changes nothing is never given from memory: it needs a read.
//
// # How an instance that always loses gets its turn
//
// The server decides which of two swaps comes first, and the other one is refused. An instance that is far from the server would always
// be refused while a near one changes the key all the time. So an instance whose swaps lose twice in a row asks those that the record
// names in letters to give way: they leave this key alone for two and a half round trips of the loser, 100 ms at most. A record always
// names its writer for that, also after the writer's last release. A letter that is lost costs only time. A job that lost as often as
// the one that asks gives no way, and none does so for more than a second, because those that are far may also compete with each other.
// A job that loses to ever more instances is one of a crowd: it rests, and reads the record anew (way.go rest).
//
// # Leases
//
// A lease is alive or dead, and death is final. A swap names the leases that its decision relied on as alive, at most
// [Limits.Living]: the asker's own, and those that hold the key afterwards. So no key is granted to a dead lease, and no
// asker is queued behind a dead holder whose end was handled before. Dead leases need no condition. A bind:ttl lock and
// a MinHold each have a lease of their own, which is opened before the swap. If the swap fails, the lease is revoked.
//
// When a lease dies, records still name it. The next operation on such a key reaps it first: it removes dead waiters
// and hands the key off. It marks the lease as dead in the record, so each death is reaped once. Who comes? The instance
// itself, if it revokes a lease: it remembers which keys its own leases hold. Else the first waiter, who checks when the
// holder's lease should end, or the sweep.
//
// # Tokens
//
// Only the swap tells which tokens it reserves. While the machine runs, tokens of new grants are provisional. Records and
// letters contain them as offsets, and the answer gets them after the swap.
//
// # Unknown outcomes
//
// If the answer to a swap is lost, the swap may be carried out even later. Withdraw changes the version of the record, also
// if nothing is to be withdrawn. So a late swap dies, without any clock. If this instance then learns what became of the
// key, it checks all its waits, because the lost answer may have granted one of them.
//
// # Letters
//
// News for other instances goes in letters, which the server delivers if the swap is carried out. Letters are hints: the
// record tells the same. A letter may be late, so that of a bind:ttl grant does not say how long the lock lasts.
//
// # Space
//
// The record of a free key stays for some minutes, so that a late release is answered with what happened, and because
// its version stops late swaps. One elected instance sweeps. It deletes a record only if it saw the same version some
// minutes ago, by its own clock.
package cas
