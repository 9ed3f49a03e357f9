// Package holdings has the sessions of a sidecar and the locks that they hold. All of it is local:
// the store is asked nothing, and what sessions give up is handed to a [Sender].
//
// # Sessions and locks
//
// A [Session] owns locks. A [Lock] leaves its session by a release, a loss, or the end of the
// session. Each takes the lock out under the session's mutex and decides once what becomes of it. A
// grant enters the session under the same mutex, or is handed back if the session has ended. So an
// ended session holds nothing and receives nothing.
//
// A grant enters as a member: the app does not see it, and is not told when it is lost. Publish
// makes it the app's, all members of a call at once. A call has a [Slot] in the limit of its
// session from its admission until its lock counts by itself.
//
// A lock can be relied on while its lease is trusted and its MaxHold is not over. Timers see to
// both, and every read checks both. If MaxHold is over, the lock is lost and released.
//
// # Releases
//
// A [Release] is repeated until the store confirms it, or until its lock's lease is dead. If a
// member is released, no MinHold keeps its key, because the app never knew of the lock.
//
// # Entries
//
// An owner enters again what its session holds under its name. The store does not know of entries.
// Its calls that wait in the queue enter, too, when one of them gets the lock: see [Entrance]. Each
// release takes one entry off. Everything else that ends a lock ends all its entries. Entries keep
// their numbers when one below them ends.
//
// # Shares
//
// A session may have several shares of one key, which are found by their tokens. A downgrade turns an
// exclusive lock into a share in its place: see [Session.Downgrade].
//
// # Recent ends
//
// The grants that ended last are remembered with the reason, so that a late claim is told what
// became of its lock. A session remembers its losses, at most as many as it may hold locks.
package holdings
