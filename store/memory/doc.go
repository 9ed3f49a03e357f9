// Package memory is the embedded lock store. Its data lives in this process. It is for development, for
// tests, and for a single sidecar that shares no locks with others.
//
// A [Space] is the shared data, comparable to a database. A [Store] is one instance's view of a space.
// Production has one of each. Tests open several instances on one space.
//
// # Structure
//
// The keys of a namespace are spread by hash over shards. A shard is a mutex and a map of rows. A key's row
// contains its holder, token, waiters, skipped waiters and watchers. Leases are in a separate index.
// Reading whether a lease lives takes one atomic load. Renewals, reaps and signals change a lease under its
// mutex, so exactly one of them wins.
//
// Lock order: a shard, then the lease index, then a lease. No operation locks two shards at once.
//
// # Death
//
// A reap first replaces the lease's expiry by a permanent mark of death, and then visits the rows that the
// lease held. Between these steps, rows may still name the dead lease. An operation that meets such a row
// under its shard's mutex settles the row first, by the same hand-off. So the key goes to the first living
// waiter, and a new asker cannot overtake. Only rows with waiters, skipped waiters or watchers need the
// visit. The next asker can take the others as they are.
//
// While a lease dies, a waiter may be appended or a key granted under it. The visit takes the shard's mutex
// after the mark is set, so it finds this waiter. The next asker finds the dead holder.
//
// A hold (MinHold) is a time in the row. The row is not settled before this time. When a lease dies during
// the hold, the visit notifies the waiters of the row to check again when the hold is over. A release
// during the hold removes lease and grant from the row, so a later claim is answered Released.
//
// There are no background goroutines. Expired leases are reaped when an operation meets them, or by Sweep.
//
// # Shares
//
// The row's own holder is the exclusive one. Shared holders are a list beside it, in token order, and each
// has all the fields of an exclusive one. A row has either kind, never both. An operation that ends a
// share, or takes a waiter out of the queue of a shared key, then grants the waiters at the head that fit.
//
// A dead share blocks no asker, because each ask and each check of a waiter removes dead shares first. While a
// lease dies, a waiter may arrive or a share be granted. If a key has waiters, the visit of that death settles its
// row, whether the lease belonged to a holder or a waiter. If it has no waiters, the next asker settles it.
//
// # Time
//
// All decisions use Go's monotonic clock.
//
// # Tokens
//
// Memory loses all locks at a restart, but tokens must keep growing. Therefore the counter starts at the
// wall clock's microseconds since 1970, which stay below 2^53 until the year 2255, and grows by one for
// each grant in the space. A restart continues above the last token under two conditions: the previous
// process granted less than a million locks a second on average, and the wall clock was not set back
// between the two starts by more than that process had lived.
//
// # Memory
//
// After a release or the death of a lease, the row keeps its last token, so a late release can be answered
// with what happened. Sweep deletes such rows after a few minutes ([forgetAfter]). Without Sweep, memory
// grows with the number of different keys and leases, but not with repeated operations on the same ones.
package memory
