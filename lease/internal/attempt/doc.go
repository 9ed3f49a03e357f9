// Package attempt gets locks: it makes attempts for calls, and tracks each until its outcome is known.
//
// # Where to read
//
// A call: call.go (from its beginning to its grant), wait.go (its wait, and all that ends it), retry.go (another attempt), ownkey.go (a
// key of its own session), turns.go (request ids), group.go (several keys). acquirer.go is what the calls of a sidecar have in common.
//
// An attempt: attempt.go, phase.go (its phases), ask.go (the first question), win.go (a grant), end.go (all other ends, in a table),
// cleanup.go (what is sent then, and until when), move.go (the lease is replaced).
//
// The wait: arrivals.go (the order of the calls), gather.go, enqueue.go, queue.go (news), check.go.
//
// A release: release.go (to the store), cohort.go (to the next waiting call).
//
// Kept keys: keep.go (a release keeps a key, a call takes it, it is given up), keepable.go (what a lock knows of that), recall.go (a try
// that another sidecar's kept key denies), keeper.go (when the store hears recalls).
//
// In the code, aq is the [Acquirer], q its queue, c a [Call], b an [Attempt] (a is an arrival, an ask or an answer), h a lock, m a member of a cohort.
//
// # Calls and attempts
//
// A [Call] makes attempts until one wins, or until the call gives up. An [Attempt] has one attempt id and one
// lease; phase.go draws its phases. If the caller leaves (its connection closes, its session ends, the sidecar
// drains), the attempt continues alone until its outcome is known, and hands back what it wins. If the lease is
// lost while the attempt waits, the call makes another attempt under a fresh lease, and loses its queue position. docs/how-it-works.md draws the states
// of a call.
//
// # The order of waiting calls
//
// Calls of this sidecar that wait for one key are queued in the order in which they came (arrivals.go). The
// first asks for the key. When it has its answer, the others are queued together, before later ones. If a key
// is known to be held, a call is queued at once. Calls that do not wait are not ordered.
//
// News is a hint. The queue also checks each wait just after the holder's expiry, as often as leases are
// renewed, and every poll interval if news of other sidecars does not arrive.
//
// If only the store's answer can end a call, the caller's goroutine runs the statement itself when the lane is
// idle. This saves a wake-up.
//
// # Kept keys
//
// A release may be put off: the sidecar keeps the key, and its next call takes it without the store. Package keep has the states. The
// store's row then names an earlier holder of the grant. So three rules hold. Either the store is told of a lock, or the lock leaves its
// session unseen, never both (keepable.go). A token is given once, and only below the limit of the grant. A key that is given up is
// released until the outcome is known, and every call of this sidecar waits for that. One that does not wait ends with the next failed try.
//
// # Hand-backs
//
// An unwanted grant is released repeatedly, as long as it can last: a session's lock as long as its lease is
// renewed, not only for a TTL.
//
// A waiter with skip is skipped when the holder releases with success. Its attempt returns the result. The
// store remembers the waiter until a cancel, or until the waiter's lease is dead.
//
// # Request ids
//
// With BindTTL, calls with the same request id have the same attempt id. Freeing the grant of one call would free
// it for all. Such calls take turns (TakeTurn): each begins when the earlier ones can no longer change the store.
// If one leaves, the others keep their grant. Only the store knows whether another sidecar has given the same grant
// to its app. If both may have delivered it, it is not handed back: see Undelivered in [store.Claim].
//
// In a session a repeat does not ask the store, because the session's locks and entries have the ids of the
// requests that made them. Attempt ids are random. Calls with the same id take turns there, too. An id is
// remembered while the call runs or the entry is held.
//
// A release by a request id ends the running calls, takes its turn, and releases what they have got. With
// BindTTL it asks the store for the grant, so it finds a grant of another sidecar. A call that waits at another
// sidecar continues, because it has a caller there.
package attempt
