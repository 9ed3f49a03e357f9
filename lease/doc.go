// Package lease is the core of a sidecar: sessions, leases, deadlines, and the locks of its sessions. It
// does no I/O itself: it calls the operations of a [store.Store] in the right order. It reads time through
// one [clock.Clock], so tests run it under virtual time.
//
// # The way of a call
//
//	            an acquire               a release                       news of the store
//	                ▼                        ▼                                  ▼
//	lease       Manager.Acquire          Manager.Release                    Manager.News
//	                │ several keys: multi    ▼                                  ▼
//	attempt         │                    Acquirer.release                   Queue.News
//	                ▼                      │   │   └─▶ keep: the key stays for   │
//	            Call.Run                   │   │       the next session here     │
//	                │ makes one or more    │   ▼ the next call here              ▼ a queued call
//	                ▼                      │  its attempt wins              its attempt wins
//	            Attempt ── wins ──┐        │
//	                │             ▼        │
//	holdings        │   sessions: who has which lock; what is released leaves its session first
//	heartbeat       │   leases: for how long a lock may be trusted
//	                ▼ asks                 ▼ claims
//	lanes       many calls become one operation of the store, by package batcher
//
// A lock is won in one place: Attempt.win, or Attempt.take if this sidecar kept its key. docs/how-it-works.md has all rooms, and the function that
// tells each flow.
//
// # Who trusts what
//
// An app trusts a grant as long as the sidecar reports it as held. The sidecar trusts a grant as long as it
// trusts the grant's lease. It trusts a lease until
//
//	send time of the last confirmed renewal + TTL - margin
//
// on the monotonic clock. The margin is 5% of the TTL, at least 50 ms. The store counts the TTL from the
// moment when it carries the renewal out. So the sidecar stops trusting the lease before the store grants
// the lock to another session. On a suspended machine, the monotonic clock stands still. Therefore the
// lease is not trusted either if the boot-time clock has moved ahead of it since the last renewal. Every
// read checks this; timers only report a loss to an app that does not ask. A lease past its deadline is
// lost and never revived, even if the store would still renew it.
//
// If a process is stopped between the check and the app's use of the answer, only the fencing token helps.
// The tokens of a key strictly grow, so the protected resource can refuse a late write.
//
// # Sessions and locks
//
// A [Session] owns locks, and exists only in its sidecar: see package lease/internal/holdings. Its locks
// are held under renewed leases, one for each step of the TTLs in use. So one statement over a few rows
// renews 100,000 locks.
//
// A grant that has arrived is undelivered until its call returns. If the lock is lost before that, it is
// handed back, and the call continues as if it had not been granted.
//
// Each bind:ttl lock has a lease of its own, which is not renewed. Any pod may release or extend the lock,
// so only the store knows it. Its holder counts the time itself. The reported time is reduced by the margin
// and counts from the question, so the holder stops before the store does.
//
// # Holds, outcomes, signals
//
// A MaxHold ends a lock like a deadline: timers and reads check it. The session loses the lock, and the release is
// repeated until the store confirms it. The store keeps a MinHold even after the end of the lock's lease. If the
// grant was not reported to a caller, its hold ends with the hand-back, even if the lease is dead then.
//
//	free ──grant──▶ held ──release, loss, end of the session──▶ free
//	                  └──before its MinHold is over──▶ hold pending ──the hold is over──▶ free
//
// A request to a holder (to stop, or to give up at once) stays in the store until it is read. News and renewals
// report that there is one. If a signal arrives before the grant that it means, it is remembered until the grant arrives
// or can no longer arrive. Repeats are harmless: a stop is delivered again only with another reason, and a broken
// lock is gone. If a holder's sidecar does not read the request, the holder loses the lock with its lease.
//
// # Calls and attempts
//
// A call makes attempts until one wins or the call gives up: see package lease/internal/attempt. A call for
// several keys gets all or none: see package lease/internal/multi.
//
// # Words
//
// Settled: nothing of it can change the store any more, so no try follows (a release, a cleanup, an attempt). Undelivered: a grant that no app
// knows of, because its call has not returned, or its answer could not be written. To leave: to give up a place (in the queue, among the
// arrivals, in the session's limit, a turn). Lost: the store or a deadline has ended it; released: the app has; handed back: it was
// undelivered. Over: an attempt has its outcome; ended: it has also left the queue and its lease.
//
// To hand off: the store gives a released key to the first waiter. To hand on: the sidecar gives it to the next call of the cohort, without
// the store. A hand-over is either of them. To hand back: to release a grant that nobody wants. To give up: to release a key that was kept.
//
// # Mutexes
//
// A goroutine that has one of these locked locks only later ones: the arrivals of a sidecar, its queue, an attempt, a session, a shard of the
// index of locks. A watch may be locked before a session, too. All other mutexes are leaves: with one of them locked, nothing else is locked. An
// app's notices (OnLost, OnStop, OnEnd) are given with the session locked, so they must not block, nor call the manager.
//
// # Kept keys
//
// With a Keep in the configuration, a released key may stay with the sidecar for its next session: see package lease/internal/keep. A kept key is a
// lock of nobody: it is given up when another sidecar wants it (a recall), when nobody here uses it, when the sidecar drains or loses the lease, and
// when it cannot hear recalls. A recall is a hint. A lost one costs at most the time for which a grant may be kept.
//
// # Watches
//
// [Manager.Watch] reports what happens to a key: see package lease/internal/watch.
//
// # News
//
// News is a hint. A wait is also checked just after its holder's expiry, as often as leases are renewed,
// and every poll interval while the store cannot push news. Other hints cause a check of waits at once. The
// store is asked to push news only while somebody here would be told of them: see package lease/internal/hearing.
//
// # Goroutines
//
// A call runs in the goroutine of its connection, and so does the statement that it asks for, if only its answer can end the call.
// Otherwise a lane has a goroutine while it has items: see package batcher. [Manager.Start] begins the loops: leases are renewed, waits are
// checked, signals are read, watches are kept, kept keys are given up. What is tried again after a call runs by package background. [Manager.Stop] ends
// the loops, waits for these goroutines, and tells the order in its comments. A goroutine that only waits for the end of an attempt (EndTurn, CleanedUp) ends
// with that, and Stop does not wait for it.
//
// # Retries
//
//	where                             | what                                                        | until
//	a store                           | a statement that was rolled back because of concurrent ones | a few times
//	package batcher (slow.go)         | an item whose row is locked                                 | the store's timeout
//	attempt: persist, sendRelease     | a withdrawal or release without an answer                   | the store can have nothing of it
//	heartbeat: renew                  | a renewal without an answer                                 | the lease's deadline
//	heartbeat: sendRevocation         | a revocation                                                | a minute after the lease's TTL
//	attempt: Call.MayGoOn             | an attempt whose lease or queue position was lost           | the end of the call's wait; without one, MaxAttempts
//
// # Observation
//
// Package observe makes spans, metrics and log lines. Calls never wait for it.
//
// # What happens in each failure
//
// The app dies, or its connection closes. Its session ends: all its locks are released together, in as few statements as they fit, and its waits are cancelled. A wait that
// is just being enqueued is cancelled when the store has answered, because a cancel that came first would leave a waiter without a call.
//
// The store does not answer. Held locks live until the deadline of their lease. Then they are lost (store_lost), because the store may have given
// them to others. Acquires fail. The store may have carried them out, so they are withdrawn until the store answers, or can keep nothing of
// them: package lease/internal/attempt has the table. Releases are repeated likewise. A wait keeps its queue position as long as its lease lives. If
// the lease dies, the call attempts again under a fresh lease when the store answers.
//
// Another database session keeps a key's row locked. Operations on this key are repeated alone, so that others are not delayed. They fail
// after the store's timeout without an effect. Releases and withdrawals continue.
//
// A standby with older data is promoted. A renewal names the leases of another history. The locks that are believed to be held under them are
// verified, because the standby may not know them. Then they are moved to fresh leases, so that the old ones have only what no app knows of: see
// package lease/internal/reconcile.
//
// The process is stopped, or the machine suspended, for longer than a lease lasts. Timers do not help then, so each read checks the deadline:
// the first read afterwards finds all locks lost (expired).
//
// The store reports a trusted lease as dead, or grants a key that is held here. The store decides: the lease, or the lock, is lost at once, and
// the app is told. But a lost lease is revoked only at its deadline. One of several servers may have forgotten it, while the others keep its
// locks, and an app that was not told yet may believe in these until then. Its queue positions, and grants that no app knows of, are
// withdrawn at once, because nobody believes in them. So is a lock that is broken.
//
// The sidecar stops. Sessions end, waits are cancelled, leases are revoked: see [Manager.Stop]. If the store does not answer, this takes a
// few timeouts, regardless of the number of queued operations.
//
// The sidecar dies. The next one on its socket revokes its leases, and is ready only after that ([Manager.ReapPredecessors]). Otherwise the leases
// expire, and a sidecar that wants one of their locks reaps them.
package lease
