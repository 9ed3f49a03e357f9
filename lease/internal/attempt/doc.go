// Package attempt gets locks: it makes attempts for calls, and follows each attempt until it is
// known what became of it.
//
// # Calls and attempts
//
// A [Call] makes attempts until one wins, or until the call gives up. An [Attempt] has one attempt id
// and is made under one lease. Its states are in attempt.go. The caller may leave: its connection
// closes, its session ends, or the sidecar drains. Then the attempt goes on alone until its outcome is
// known, and hands back what it wins. If the lease is lost while the attempt waits, the call makes
// another attempt under a fresh lease. It has lost its queue position then.
//
// # The order of waiting calls
//
// Calls of this sidecar that wait for one key are queued in the order in which they came (arrivals.go).
// The first asks for the key. The others ask nothing. When the first has its answer, they are queued
// together, before those that come later. If a key is known to be held, a call is queued at once. A
// call that does not wait is not counted.
//
// News is a hint. The queue also checks each wait just after the holder's expiry, as often as leases
// are renewed, and every poll interval if news of other sidecars does not come by itself.
//
// If only the store's answer can end a call, the caller's goroutine runs the statement itself when the
// lane is idle. This saves a wake-up.
//
// # What is handed back
//
// A grant that nobody wants is freed again and again for as long as it can last. A session's lock lasts
// as long as its lease is renewed, not only for a TTL.
//
// A waiter that asked for it is skipped when the holder releases with success. The attempt returns the
// result, and the store remembers the waiter until it is told to forget it, or until the waiter's lease
// is dead.
//
// # Request ids
//
// With BindTTL, attempts of calls with the same request id have the same attempt id, so to free what
// one of them got would free it for all. Such calls take turns (turns.go). Each begins when nothing of
// those before it can change the store any more. What one of them was given is not freed because
// another one left. Only the store knows whether another sidecar has given the same grant to its app.
// If both may have delivered it, none hands it back: see Undelivered in [store.Claim].
//
// In a session a repeat does not ask the store, because the locks of the session and their entries
// have the ids of the requests that made them. The attempts of its calls have random ids. Calls with
// the same id take turns there, too. An id is remembered while the call is under way or the entry is
// held.
//
// A release by a request id ends the calls that are under way, takes its turn, and releases what is
// there. With BindTTL it asks the store for the grant, so it finds a grant of another sidecar. A call
// that waits at another sidecar goes on, because it has a caller there.
package attempt
