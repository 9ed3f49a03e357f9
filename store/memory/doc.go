// Package memory is the embedded lock store: the data lives in this process, for
// development, for tests, and for a single sidecar that needs no fleet.
//
// A [Space] is the shared data, what a database is to other stores. A [Store] is
// one instance's view of it. Production has one of each; tests open several
// instances on one space to see them meet.
//
// # Structure
//
// Keys of a namespace are spread by hash over shards, each a mutex and a map of
// rows. A key's row says who holds it, under which token, who waits, who was skipped,
// and who watches. Different keys rarely meet on a mutex, and no operation holds two
// shards at once. Leases live in an index of their own. Whether a lease lives is one
// atomic word to read; whoever changes a lease holds its mutex, where renewals,
// reaps and signals meet, so exactly one wins. A lock order follows: a shard, then
// the lease index, then a lease, never the other way round.
//
// # Death
//
// To reap a lease is first to put the mark of death in the place of its expiry, once and
// for ever, and then to visit what it held. Between the two, rows may still name the dead
// lease. This is harmless: an operation that meets such a row under its mutex settles it
// first, by the same hand-off. So the key goes to the first living waiter whoever comes
// first, and a newcomer cannot overtake. Only rows with waiters, skipped ones or watchers
// need the visit; the others are free for the next asker as they are.
//
// A waiter may be appended, or a key granted, under a lease that dies in this
// moment. The mark comes before the visit and the visit takes the mutex, so the
// visit finds the waiter, and the next asker finds the dead holder.
//
// A hold (MinHold) is a time in the row, and nobody settles the row before it. The visit
// of a dead lease tells those who wait for such a row to look when the hold is over. A release
// before that takes lease and grant out of the row, so that a later claim is told that it was
// released.
//
// Nothing runs in the background. Expired leases are reaped when an operation
// meets them, or by Sweep.
//
// # Time
//
// All judgements use Go's monotonic clock.
//
// # Tokens
//
// Memory forgets everything at a restart, but tokens must go on growing. So the
// counter starts at the wall clock's microseconds since 1970, which stay below
// 2^53 until the year 2255, and counts up by one for each grant of the whole
// space. A restart continues above the last token as long as the process before
// granted less than a million locks a second on average over its life, and the
// wall clock is not set back between the two starts by more than the time the
// process before had lived.
//
// # Memory
//
// A row remembers its last token after the key was released or its lease died, so
// that a late release can be told what happened. Sweep forgets such rows after a
// few minutes ([forgetAfter]). Without Sweep, memory grows with the number of
// different keys and leases, but not with operations on the same ones.
package memory
