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
// A waiter that asked for it is skipped by a success: it returns the result, and the
// store remembers that for it until it is told to forget, or the waiter's lease is
// dead. An attempt that nobody listens to any more only makes it forget.
//
// What others ask a holder for (to stop, to give up at once) lies in the store until
// it is heard. News and renewals say that there is something. A signal may overtake
// the grant that it means: it is kept until that is here, or cannot come any more.
// Repeats are harmless: a stop is told again only for another reason, and a broken
// lock is gone. A holder whose sidecar does not hear loses the lock with its lease.
//
// # Calls and attempts
//
// A call makes attempts. A [attempt] is one attempt under one attempt id and one lease; its
// states are in attempt.go. When the call leaves (its connection closed, its session
// ended, the sidecar drains), the attempt goes on alone until its outcome is known,
// and hands back what it wins. When the lease under an attempt is lost while it waits
// in line, the call makes another attempt under a fresh lease: its place is lost, the
// call is not.
//
// Calls of one sidecar that wait for the same key are queued in the order in which they came
// ([arrivals]). The first asks for the key. The others ask nothing, and are queued together
// when the first has its answer, before those that come later. A call that comes when the key
// is known to be held is queued at once. A call for several keys comes when it is about to
// ask for a key; a later key for which others came before is left to them. A call that does
// not wait is not counted.
//
// A call that nothing but the store's answer can end early carries its question, or its
// release, out in its own goroutine where the lane is idle. If its caller leaves meanwhile,
// its session ends without it: only its own answer waits, and nobody is there to hear that
// any more.
//
// What an attempt may have got and nobody wants is freed again and again for as long as
// it can last: a session's lock for as long as its lease is renewed, not only for a
// TTL. Attempts of calls with the same request id have the same attempt id, so freeing it
// for one would free it for all: such calls take turns, each begins when nothing of
// the ones before can change the store any more, and what one of them was given is
// not freed because another left. Whether another sidecar has given the same grant
// to its app only the store knows: a bind:ttl grant that two instances may have told
// is handed back by none of them ([store.Claim].Undelivered, and Withdraw).
//
// In a session a repeat does not ask the store: the session knows which request was granted
// what (its locks and their entries have the ids), so the attempts of its calls have random grant
// ids. Calls with the same id take turns there, too. An id is remembered for as long as the
// call is under way, or the entry is held. A release by the id ([ReleaseRequest]) ends the
// calls that are under way, takes its turn, and then releases what is there; with BindTTL it
// asks the store for the grant, as a cancel does, so it finds that of another sidecar. A call
// that waits at another sidecar goes on: it has a caller there.
//
// A call for several keys ([Manager.AcquireAll]) has a call and attempts for each of them.
// It holds the keys in the order of their bytes up to the one for which it stands in
// line, so groups never wait for each other in a circle, and it is served in its turn
// there. Until it has all, the app does not see what it has; whatever ends the call
// hands all of it back. A part that is lost meanwhile is got again.
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
// # Rotation
//
// After a failover to a server that knew less than was confirmed, a grant can be missing under
// a lease, and orphans can be back: grants and queue positions that nobody here knows. When a
// renewal names such a lease:
//
//  1. The lease is retired: nothing new is held under it. It is renewed as long as it has users.
//  2. The locks that are believed to be held under it are read. What is missing is lost. Only
//     then is the lease trusted for longer (reconcile.go).
//  3. Locks and waits that are known here are moved to the fresh lease for that TTL (rotate.go).
//  4. When it has no user any more, the lease is closed. What is left under it are orphans.
//
// Exclusion: a move changes the lease of a grant, never the grant, in one transaction with the
// lock row locked and both leases alive. Whoever takes a dead holder's key names the dead lease
// under the same row lock, so it takes what is still there, or nothing. While a move is under
// way, the store may have the lock under either lease: it is trusted only while both are, and
// the old lease is lost if the new one is lost before the answer came. A move of unknown outcome is
// under way until the store answers for each row, because that move itself may be what keeps a row
// locked. A move names both leases: one that lay in a buffer does nothing to what was moved on.
//
// Token order: a move draws no token.
//
// Nothing granted is delivered twice: an attempt keeps its id. A move never grants, and an
// answer or news that comes during it finds the attempt as before.
//
// An orphan ends in bounded time: users of a retired lease only leave. Asks in flight are users,
// and have a time limit. Releases are users, and end when the store answers. Locks and waits are
// moved in rounds, one for each renewal interval, until none is left. What a row lock of another
// session keeps from being moved keeps the lease, for as long as that lock.
//
// What ends here during its move is freed once more afterwards: its release or withdrawal may
// have been given up when the old lease ended. A session's lock is claimed by its instance, so a
// release that meets the move in the store frees the lock all the same. After a second failover
// both leases are old: their locks are verified and moved again.
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
//     another history. What is believed to be held under them is verified and moved to fresh
//     leases: see Rotation.
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
