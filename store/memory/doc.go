// Package memory is the embedded lock store. Its data lives in this process. It is for development, for
// tests, and for a single sidecar that shares no locks with others.
//
// A [Space] is the shared data, comparable to a database. A [Store] is one instance's view of a space.
// Production has one of each. Tests open several instances on one space.
//
// # Structure
//
// The keys of a namespace are spread by hash over shards. A shard is a mutex and a map of rows. The key machine
// (store/key) describes what each operation does to a row. An operation locks the row's shard, runs the machine on the row,
// and unlocks the shard. Leases are in a separate index. Reading whether a lease lives takes one atomic load.
//
// Lock order: a shard, then the lease index, then a lease. No operation locks two shards at once.
//
// There are no background goroutines. Expired leases are reaped when an operation meets them, or by Sweep. The
// operation that reaped a lease then visits the rows with waiters, skipped waiters or watchers, before it returns.
//
// # Time
//
// All decisions about locks use Go's monotonic clock.
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
