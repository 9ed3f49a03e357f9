// Package cas is the lock store for servers that can swap a record if it has not changed. A [Backend] is such a
// server: store/etcd, store/mysql and store/redis are. A [Readiness] checks it. The protocol is that of store/key, as in
// store/memory, so all engines keep the same promises.
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
// Acquires and releases that are waiting share a call, because a request costs a server much, and a swap in it little.
// Only those that failed go into the next round, at once: whoever pauses loses to an instance that does not.
//
// The first try may use a record that this instance remembers, or believe that a key without one is free. The swap
// tells whether that was right. An answer that changes nothing is never given from memory: it needs a read.
//
// # Whose turn it is
//
// The server decides which of two swaps comes first, and the other one is refused. An instance that is far from the server would always
// be refused while a near one changes the key all the time. So an instance whose swaps lose twice in a row asks those that the record
// names in letters to give way: they leave this key alone for two and a half round trips of the loser, 100 ms at most
// (way.go). A letter that is lost costs only time. A job that lost as often as the one that asks gives no way, and none does so for more
// than a second, because those that are far may also compete with each other.
//
// # Leases
//
// A lease is alive or dead, and death is final. A swap names the leases that its decision relied on as alive, at most
// [Limits.Living]: the asker's own, and those that hold the key afterwards. So no key is granted to a dead lease, and no
// asker is queued behind a dead holder whose end was handled before. Dead leases need no condition. A bind:ttl lock and
// a MinHold each have a lease of their own, which is opened before the swap. If the swap fails, the lease is revoked.
//
// When a lease dies, records still name it. The next operation on such a key settles it first: it removes dead waiters
// and hands the key on. It marks the lease as dead in the record, so each death is settled once. Who comes? The instance
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
