// Package key is the key machine. It describes how each operation changes the state of one key, its [Row]:
// an ask, a release, an amendment, a check, a cancel, a withdrawal, a signal, a move, a watch, and the visit after
// the death of a lease. The hand-off to waiters is part of each of them. All engines in Go run this machine, so they
// have one protocol.
//
// The machine has no goroutines, and reads no clock. An [Engine] gives it tokens and leases. An [Op] says who calls
// and when, and collects what follows from the changes: news for instances, and leases that were declared
// dead. A row is not safe for concurrent use. An engine may keep rows, as store/memory does, or may make a row from
// a [Record] for each operation.
//
// # Leases
//
// A row names leases: those of its holders, waiters, skipped waiters and watchers. A [Lease] may be shared by
// many rows, and may be renewed or reaped while an operation runs. Only its own mutex orders these, so exactly
// one of them wins. An engine may also make new leases for each operation, with the states that its server
// reports. Such a lease is living or dead, or expired if the row has not been settled since the death.
//
// # Death
//
// A reap first replaces the lease's expiry by a permanent mark of death. Then the engine visits the rows that
// name the lease (see [Op.Visit]). Between these steps, rows may still name the dead lease. An operation that
// meets such a row settles it first, by the same hand-off. So the key goes to the first living waiter, and
// a new asker cannot overtake. Only rows with waiters, skipped waiters or watchers need the visit. The next
// asker can take the others as they are.
//
// While a lease dies, a waiter may be appended or a key granted under it. The engine visits the row after
// the mark is set, so the visit finds this waiter. The next asker finds the dead holder.
//
// A hold (MinHold) is a lease that nobody renews. The row is not settled before its end. When the holder's lease dies
// during the hold, the visit notifies the waiters of the row to check again when the hold is over. A release
// during the hold removes lease and grant from the row, so a later claim is answered Released.
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
package key
