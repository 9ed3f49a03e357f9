package store

import "time"

// Attempt names one attempt to get one key.
type Attempt struct {
	Key string
	ID  AttemptID
	// Undelivered: the caller tells nobody of a grant that it finds (Cancel), so another instance
	// may still give it back as Undelivered.
	Undelivered bool
}

// Ask is one attempt to get one key.
type Ask struct {
	Attempt
	// Lease is the asker's renewed lease. A session's lock is held under it; a bind:ttl waiter
	// keeps its place by it. An Acquire with a TTL does not look at it.
	Lease LeaseID
	// TTL above zero asks for a bind:ttl lock: the grant makes an unrenewed lease that lasts so
	// long. Zero: it is held under Lease.
	TTL time.Duration
	// MinHold above zero keeps the key for so long after the grant, whatever becomes of its holder.
	MinHold time.Duration
	// Wait: if the key is held, the attempt is queued.
	Wait bool
	// Skip: as a waiter it wants the result, not the lock, when the holder releases with the
	// Outcome Success. A Shared ask has none.
	Skip bool
	// Shared asks for a share: any number of shared holders have the key together. Only an engine with
	// the Trait Shared is asked for one.
	Shared bool
	// Limit above zero is for a Shared ask: at most so many holders have the key together. While a key
	// has shared holders or shared waiters, they all name the same limit, or none.
	Limit int
	// Session and Owner are shown with the holder.
	Session, Owner string
	// Data is JSON (valid UTF-8), or nil.
	Data []byte
	// Traceparent is the W3C trace context of the call, or empty.
	Traceparent string
}

// Outcome is what became of an attempt.
type Outcome uint8

const (
	// Held: somebody else has the lock, or a Shared ask would overtake a waiter or exceed its Limit;
	// nothing changed.
	Held Outcome = iota + 1
	// Granted: the lock is the attempt's.
	Granted
	// Queued: the attempt stands in line.
	Queued
	// Gone: the attempt has neither the lock nor a place in line.
	Gone
	// LeaseLost: the asker's own lease is expired or dead; nothing changed.
	LeaseLost
	// RowLocked: somebody keeps the key's row locked; nothing changed.
	RowLocked
	// Skipped: the attempt waited, and the holder released with Success, so the work is done.
	Skipped
	// Quiet: the store grants nothing until ExpiresIn is over, because a failover may have forgotten
	// grants. Only an ask that does not wait; nothing changed.
	Quiet
	// LimitMismatch: the key has shared holders or shared waiters, and they name another Limit (that of
	// the Lock) than this Shared ask; nothing changed. Those whose lease has expired are reaped first.
	LimitMismatch
)

// Answer tells what became of an attempt.
type Answer struct {
	Outcome Outcome
	// Token and AcquiredAt are those of the grant (Granted).
	Token      int64
	AcquiredAt time.Time
	// Slot is the share's (Granted): see [Share].
	Slot int
	// ExpiresIn is how long the grant's lease or its hold lasts (Granted), at least: in an answer
	// since the question, in news from now. Or how long nothing is granted (Quiet).
	ExpiresIn time.Duration
	// Lock is who has it (Held, Queued, LimitMismatch), with at most [BlockersShown] of its Holders. For
	// Queued, Holder.ExpiresIn and NextEnd may be zero or less: a holder's lease is about to be reaped.
	Lock Lock
	// Position is the queue position, 1 for the first, of an ask that waits (Queued), or that a
	// Cancel gave up (Gone). Zero: not known.
	Position int
	// Result is JSON, or nil, from the holder's release (Skipped).
	Result []byte
	// HandedBy is the W3C trace context of the release that handed the lock to this waiter
	// (Granted), or empty.
	HandedBy string
	// Cohort are the waiters directly behind one that got its lock by a hand-off, in their order, if they
	// wait under the same lease and only for the lock, all exclusively. Their sidecar may give them the lock one after the
	// other, each under the next token, without asking the store: see Claim.Served.
	Cohort []HalfID
	// GrantedFor is how long ago, by the store's clock, a waiter's grant was made (Granted).
	GrantedFor time.Duration
}

// News tells that a waiter was granted its lock by a hand-off, or was skipped. If the Answer has no
// Outcome, the waiter should be checked now; then only the first half of the ID need be there
// (HalfID). With Signals or an Event it is about something else. A grant that only another instance
// can tell of comes with the ID only, without Key and Lease.
type News struct {
	Attempt
	// Lease is the lease under which it waited.
	Lease  LeaseID
	Answer Answer
	// Signals: there are signals for holders of this instance.
	Signals bool
	// Event is what happened to a key that this instance watches.
	Event *Event
}

// EveryWait is the news that something may have been missed: check every wait, every watched key
// and the signals now.
var EveryWait = News{}
