// Package holdings contains the sessions of a sidecar and the locks that they hold. It is local: it does
// not ask the store, and passes releases to a [Releaser].
//
// session.go is a session, lock.go a lock, set.go all sessions, index.go how locks are found. admission.go is what a session
// knows of a call, and counts it in the limit; undelivered.go is how a grant becomes a lock of a session. end.go is how it leaves the session, lost.go how a session loses
// it, and what the app hears of that, lostearly.go what the store may still have then. ends.go is what is remembered of it, release.go
// its release while that is under way. reentry.go and entrance.go are how its owner enters it again, share.go how it becomes a share,
// stop.go how its holder is asked to stop.
//
// # Sessions and locks
//
// A [Session] owns locks. A [Lock] leaves its session by a release, a loss, or the end of the session. Each
// of these removes the lock under the session's mutex and decides once what becomes of it. A grant enters
// the session under the same mutex, or is handed back if the session has ended. So an ended session holds
// no lock and receives none.
//
// A grant enters undelivered: the app does not see the lock, and is not notified if it is lost. Deliver makes all
// locks of a call visible at once. A [Admission] counts a call in the limit of its session, until its lock counts itself.
//
// A lock is valid while its lease is trusted and its MaxHold is not over. Timers end both, and every read
// checks both. If MaxHold is over, the lock is lost and released.
//
// # Releases
//
// A [Release] is tried until the store confirms it, or until its lock's lease is dead. Package attempt tries it (attempt/release.go), and
// notes each try here. The call that released waits for the first try, a repeated call for the last one. If an undelivered lock is
// released, its MinHold does not keep the key, because the app never knew of the lock.
//
// # Entries
//
// An owner may enter a lock again that its session holds under its name. The store does not know entries. If one
// call of the owner gets the lock, its calls that wait in the queue enter, too: see [Entrance]. Each release ends
// one entry. Any other end of a lock ends all its entries. Entries keep their numbers when an earlier one ends.
//
// # Shares
//
// A session may have several shares of one key, which are found by their tokens. A downgrade turns an
// exclusive lock into a share with the same token: see [Session.Downgrade].
//
// # Recent ends
//
// Recently ended grants are remembered with the reason, so that a late claim is answered with it. A session
// remembers its losses, at most as many as it may hold locks.
package holdings
