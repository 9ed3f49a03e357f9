// Package lease is the heart of a sidecar: sessions, leases, deadlines, and the
// locks that are granted here. It does no I/O of its own: it puts the operations
// of a [store.Store] in order, and reads time through one [clock.Clock], so that all of
// it runs under virtual time.
//
// # Who trusts what
//
// An app trusts a grant for as long as the sidecar says that it holds. The
// sidecar trusts a grant for as long as it trusts the lease under it. It trusts a
// lease until
//
//	send time of the last confirmed renewal + TTL - margin
//
// on the monotonic clock, with a margin of 5% of the TTL, at least 50 ms. The
// store counts the TTL from the moment when it carries the renewal out, which is
// after it was sent, so the sidecar stops believing before the store lets anybody
// else have the lock. A suspended machine's monotonic clock stands still: when the
// boot-time clock has moved ahead of it since the last renewal, the lease is not
// trusted either. Every read checks this; timers only make sure that the app
// hears of a loss that it does not ask for. A lease past its deadline is lost and
// never revived, even if the store would still renew it.
//
// What remains when a process is stopped between the check and the app's use of
// the answer is the fencing token: the token of a key strictly grows, so whatever
// the lock protects can refuse the late one.
//
// # Sessions and locks
//
// A [Session] owns locks and is purely local: package lease/internal/holdings says how. All its
// locks are held under renewed leases, one for each step of the TTLs in use, so that renewing
// 100,000 locks is one statement over a handful of rows.
//
// A grant that has arrived is a member until its call looks at it and returns. If it was lost
// before, it is handed back, and the call goes on as if it had not been granted.
//
// bind:ttl locks have a lease of their own, which nobody renews, and belong to
// nobody here: any pod may release or extend them, so only the store knows them. Their
// holder counts for itself, and is told a time with the margin taken off, that runs since
// the question was sent: so it stops believing before the store does.
//
// # Holds, outcomes, signals
//
// A MaxHold ends a lock like a deadline: timers see to it, reads check it. The lock is
// lost for its session, and released until the store confirms. A MinHold is kept by
// the store, also after the lease of the lock. If nobody was told of the grant, it is
// handed back with its hold, even if the lease is dead by then.
//
//	free ──grant──▶ held ──release, loss, end of the session──▶ free
//	                  └──before its MinHold is over──▶ hold pending ──the hold is over──▶ free
//
// A request to a holder (to stop, to give up at once) lies in the store until it is
// heard. News and renewals say that there is something. A signal may overtake
// the grant that it means: it is kept until that is here, or cannot come any more.
// Repeats are harmless: a stop is told again only for another reason, and a broken
// lock is gone. A holder whose sidecar does not hear loses the lock with its lease.
//
// # Calls and attempts
//
// A call makes attempts until one wins, or it gives up: package lease/internal/attempt says how, and
// package lease/internal/multi how a call for several keys gets all or none.
//
// # Watches
//
// [Manager.Watch] tells streams what happens to a key. Package lease/internal/watch says how.
//
// # News
//
// News is a hint: a wait is also checked just after its holder's expiry, as often
// as leases are renewed, and where the store's news does not come by itself for
// now, every poll interval. Other hints make waits be checked at once. The store
// listens while this sidecar has a lease, from before the first is opened, and a while longer: waits, locks of
// sessions and watches all need one.
//
// # What is told
//
// Package observe makes spans, metrics and log lines of what has been decided. Nothing waits
// for it.
//
// # What happens in each failure
//
//   - The app dies or its connection drops: its session ends; everything that it
//     holds is released in one batch; its waits are cancelled, those whose
//     enqueueing is under way once that is known.
//   - The store does not answer: held locks live until the deadline of their
//     lease, then they are lost (store_lost). Acquires fail; those that may have
//     been carried out are withdrawn until the store confirms or their lease is dead.
//     So are releases. Waits keep their place as long as their lease lives; then
//     they go on waiting, and attempt again under a fresh lease when the store is back.
//   - Somebody keeps a key's row locked: what concerns that key is asked again,
//     alone, and fails after the store's timeout with nothing done. Releases and
//     withdrawals go on; no other key waits for it.
//   - A standby is promoted that knows less than was told: a renewal names the leases of
//     another history. The locks that are believed to be held under them are verified and moved to fresh
//     leases: package lease/internal/reconcile says how.
//   - The process is stopped or the machine suspended for longer than a lease
//     lasts: the first read afterwards finds the lease past its deadline and all
//     its locks lost (expired).
//   - The store says that a lease is dead which is trusted here, or grants a key
//     that is held here: the store is right; the lease, or the lock, is lost.
//   - The sidecar stops: sessions end, waits are cancelled, leases are revoked. A
//     store that hangs costs a few timeouts, whatever is queued.
//   - The sidecar dies: the next one on its socket revokes its leases, and is not
//     ready before ([Manager.ReapPredecessors]). If there is none, they expire and are revoked
//     by whoever wants one of its locks.
package lease
