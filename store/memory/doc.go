// Package memory is the embedded lock store: the data lives in this process, for development, for
// tests, and for a single sidecar that needs no fleet.
//
// A [Space] is the shared data, what a database is to other stores. A [Store] is one instance's view
// of it. Production has one of each. Tests open several instances on one space.
//
// # Structure
//
// Keys of a namespace are spread by hash over shards, each a mutex and a map of rows. A key's row
// says who holds it, under which token, who waits, who was skipped, and who watches. Leases live in
// an index of their own. Whether a lease lives is one atomic word to read. A change of a lease needs
// its mutex, where renewals, reaps and signals meet, so exactly one wins.
//
// Lock order: a shard, then the lease index, then a lease. No operation holds two shards at once.
//
// # Death
//
// A reap first puts the mark of death in the place of the lease's expiry, for ever, and then visits
// what the lease held. Between the two, rows may still name the dead lease. This is harmless: an
// operation that meets such a row under its mutex settles it first, by the same hand-off. So the
// key goes to the first living waiter, and a newcomer cannot overtake. Only rows with waiters,
// skipped ones or watchers need the visit. The others are free for the next asker as they are.
//
// A waiter may be appended, or a key granted, under a lease that dies in this moment. The visit
// takes the mutex after the mark, so it finds the waiter, and the next asker finds the dead holder.
//
// A hold (MinHold) is a time in the row, and nobody settles the row before it. The visit of a dead
// lease tells the waiters of such a row to look when the hold is over. A release before that takes
// lease and grant out of the row, so that a later claim is told that it was released.
//
// Nothing runs in the background. Expired leases are reaped when an operation meets them, or by
// Sweep.
//
// # Shares
//
// The row's own holder is the exclusive one. Shared holders are a list beside it, in the order of their
// tokens, and each is a grant with all that an exclusive one has. A row has one or the other. An operation
// that ends a share, or takes a waiter out of the queue of a shared key, grants the waiters at the head that
// fit then.
//
// A dead share is in the way of nobody: each ask, and each check of a waiter, takes the dead ones out
// before it judges. A waiter may come, or a share be granted, while a lease dies. If somebody waits, the
// visit of that death settles the row, whoever died. If nobody waits, the next asker does.
//
// # Time
//
// All judgements use Go's monotonic clock.
//
// # Tokens
//
// Memory forgets everything at a restart, but tokens must go on growing. So the counter starts at
// the wall clock's microseconds since 1970, which stay below 2^53 until the year 2255, and counts up
// by one for each grant of the whole space. A restart continues above the last token if the process
// before granted less than a million locks a second on average, and the wall clock is not set back
// between the two starts by more than that process had lived.
//
// # Memory
//
// A row remembers its last token after a release or the death of its lease, so that a late release
// can be told what happened. Sweep forgets such rows after a few minutes ([forgetAfter]). Without
// Sweep, memory grows with the number of different keys and leases, but not with operations on the
// same ones.
package memory
