// Package lease is the heart of a sidecar: sessions, leases, deadlines, and the locks that are granted
// here. It does no I/O: it puts the operations of a [store.Store] in order. It reads time through one
// [clock.Clock], so all of it runs under virtual time.
//
// # Who trusts what
//
// An app trusts a grant as long as the sidecar says that it holds. The sidecar trusts a grant as long as
// it trusts the lease under it. It trusts a lease until
//
//	send time of the last confirmed renewal + TTL - margin
//
// on the monotonic clock. The margin is 5% of the TTL, at least 50 ms. The store counts the TTL from the
// moment when it carries the renewal out. So the sidecar stops believing before the store lets anybody
// else have the lock. A suspended machine's monotonic clock stands still: if the boot-time clock has moved
// ahead of it since the last renewal, the lease is not trusted either. Every read checks this; timers only
// report a loss to an app that does not ask. A lease past its deadline is lost and never revived, even if
// the store would still renew it.
//
// If a process is stopped between the check and the app's use of the answer, only the fencing token helps:
// the token of a key strictly grows, so what the lock protects can refuse the late one.
//
// # Sessions and locks
//
// A [Session] owns locks and is purely local: see package lease/internal/holdings. Its locks are held
// under renewed leases, one for each step of the TTLs in use. So renewing 100,000 locks is one statement
// over a handful of rows.
//
// A grant that has arrived is a member until its call returns. If it was lost before, it is handed back,
// and the call goes on as if it had not been granted.
//
// Each bind:ttl lock has a lease of its own, which nobody renews. Any pod may release or extend it, so
// only the store knows it. Its holder counts for itself: it is given a time with the margin taken off,
// which runs since the question was sent. So it stops believing before the store does.
//
// # Holds, outcomes, signals
//
// A MaxHold ends a lock like a deadline: timers and reads check it. The lock is lost for its session, and
// released until the store confirms. The store keeps a MinHold, also after the lock's lease. If nobody was
// told of the grant, it is handed back with its hold, even if the lease is dead by then.
//
//	free ──grant──▶ held ──release, loss, end of the session──▶ free
//	                  └──before its MinHold is over──▶ hold pending ──the hold is over──▶ free
//
// A request to a holder (to stop, to give up at once) lies in the store until it is read. News and
// renewals say that there is one. A signal may overtake the grant that it means: it is kept until that
// arrives, or cannot come any more. Repeats are harmless: a stop is delivered again only for another
// reason, and a broken lock is gone. If a holder's sidecar does not read it, the holder loses the lock
// with its lease.
//
// # Calls and attempts
//
// A call makes attempts until one wins, or it gives up: see package lease/internal/attempt. A call for
// several keys gets all or none: see package lease/internal/multi.
//
// # Watches
//
// [Manager.Watch] reports what happens to a key: see package lease/internal/watch.
//
// # News
//
// News is a hint. A wait is also checked just after its holder's expiry, as often as leases are renewed,
// and every poll interval if the store's news does not come by itself for now. Other hints make waits be
// checked at once. The store listens from before the first lease is opened until some time after the last:
// waits, locks of sessions and watches all need one.
//
// # Observation
//
// Package observe makes spans, metrics and log lines. Nothing waits for it.
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
//     they attempt again under a fresh lease when the store is back.
//   - Somebody keeps a key's row locked: operations on that key are asked again,
//     alone, and fail after the store's timeout with nothing done. Releases and
//     withdrawals go on; no other key waits for it.
//   - A standby is promoted that knows less than was confirmed: a renewal names the
//     leases of another history. The locks believed to be held under them are verified
//     and moved to fresh leases: see package lease/internal/reconcile.
//   - The process is stopped or the machine suspended for longer than a lease
//     lasts: the first read afterwards finds all its locks lost (expired).
//   - The store says that a lease is dead which is trusted here, or grants a key
//     that is held here: the store is right; the lease, or the lock, is lost.
//   - The sidecar stops: sessions end, waits are cancelled, leases are revoked. A
//     store that hangs costs a few timeouts, whatever is queued.
//   - The sidecar dies: the next one on its socket revokes its leases, and is not
//     ready before ([Manager.ReapPredecessors]). If there is none, they expire and are
//     revoked by the next sidecar that wants one of their locks.
package lease
