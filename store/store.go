// Package store says what a lock store must do, whatever is behind it: an
// embedded map (store/memory) or a PostgreSQL database (store/postgres).
//
// # Words
//
// A lease says "alive until T". Any number of locks ride on one renewed lease;
// each bind:ttl lock has an unrenewed lease of its own. A lock is a key that is
// free, or held by a lease under a grant. A grant is one successful acquisition:
// a fencing token, and a AttemptID that the asker made before it asked. A waiter
// is an asker in a key's FIFO queue, known by the same AttemptID.
//
// A lease that is missing is dead; ids are never used again, so death is final.
// A lease that is past its expiry is not dead yet: its holder may be renewing it
// in this moment. To bury a lease is to declare it dead, and that is the only way
// in which locks leave an owner that did not release them.
//
// A lease that stands is the exception: the lock that rides on it was granted with a
// MinHold, and was released, or its owner is gone. Nobody renews or claims it any
// more; it keeps the key until the hold is over, and is buried then, as others are.
//
// # What every store promises
//
//  1. At most one unexpired grant of a key, judged by the store's own clock.
//  2. The tokens of a key strictly grow, through releases, restarts and sweeps.
//  3. Nothing is reported as granted before it is committed.
//  4. A key with living waiters is never free: a release, a cancel or a burial
//     hands it to the first of them (the hand-off). A waiter that was skipped
//     waits no more.
//  5. An operation may be repeated. Repeated with the same AttemptID, an Acquire or
//     an Enqueue finds what the first one did; a repeated Release finds the lock
//     released or in other hands and changes nothing.
//
// Every operation takes many items at once and answers each, in the order of the
// items. A key may stand only once among the items of one call, but for Enqueue,
// Check, Cancel and Withdraw, where several attempts may name the same key; callers
// see to that. Those of an Enqueue stand in line in their order. Where somebody else keeps
// an item's row locked for long (an operator's open transaction), only that item is
// answered with Stuck or ClaimRowLocked: nothing was done for it, and it is asked again, alone.
// One conformance suite, store/storetest, holds every store to this page.
package store

import (
	"context"
	"time"

	"github.com/google/uuid"
)

// LeaseID names a lease. It is random and never used again. The zero value
// names no lease.
type LeaseID = uuid.UUID

// AttemptID names one attempt to get one key, from before the store is asked until
// the grant ends. It is random, or derived from a request_id.
type AttemptID = uuid.UUID

// HalfID is the first half of a AttemptID, by which a waiter is told to look.
type HalfID [8]byte

// HalfOf is the first half of a grant's id.
func HalfOf(id AttemptID) HalfID { return HalfID(id[:8]) }

// Identity is the sidecar that uses a store.
type Identity struct {
	// Namespace separates keys: locks of different namespaces never meet.
	Namespace string
	// Instance is this run of the sidecar: the pod and something random.
	Instance string
	// Pod is the pod (or host) that the sidecar serves.
	Pod string
}

// Store grants locks. All methods are safe for concurrent use. Errors are
// judged with [Unavailable] and [OutcomeUnknown].
type Store interface {
	// OnNews sets the function that hears news: of hand-offs to waiters, of signals
	// to holders, of events of watched keys. It is called after the commit, from any
	// goroutine, must not block, and must be set before Start. News is a hint that
	// may be lost; Check, Signals and Get are the truth.
	OnNews(func(News))
	// Listen says whether there is anything to hear: whether this instance has
	// waiters, locks or watches, or soon will have. It does not block. An Enqueue or
	// a Watch that follows does not take effect before this instance hears, if it can.
	Listen(on bool)

	// Start makes the store usable. It fails at once on what can never work; a
	// server that cannot be reached is not such a thing: the store goes on trying
	// and Ready says so. ctx limits Start only.
	Start(ctx context.Context) error
	// Stop ends what runs in the background and gives up all connections. It
	// blocks, may be called more than once, and before Start.
	Stop()
	// Ready is nil when operations have a chance to succeed, else why not. It
	// does not ask the server.
	Ready() error
	// Traits tells callers how to use this store well, now: Polls may change. When
	// it does, news of [EveryWait] follows.
	Traits() Traits

	// OpenLeases makes renewed leases that live for their TTL from now on.
	OpenLeases(ctx context.Context, leases []NewLease) error
	// Renew extends the leases that are alive by their TTL, in one statement, and
	// returns those that it extended, also with an error. A lease that is not among
	// them although there was no error is expired or dead, or it stands: it must
	// never be trusted again.
	Renew(ctx context.Context, leases []LeaseID) (Renewal, error)
	// HeldUnder returns which of these keys' locks ride on leases of this instance, and who
	// stands in line for them under the leases. It is for leases that a Renewal says are
	// to be recounted.
	HeldUnder(ctx context.Context, leases []LeaseID, keys []string) (Count, error)
	// HeldUnderAfter looks for all that rides on leases of this instance, at a part of the
	// locks at a time: in the order of the bytes of their keys, behind this one; empty:
	// from the start, and then also for who stands in line under the leases. A part may be
	// empty, when others look in this moment.
	HeldUnderAfter(ctx context.Context, leases []LeaseID, after string) (Part, error)
	// Reconciled notes that the sidecar knows all that rides on leases, as it was told in
	// that history.
	Reconciled(ctx context.Context, leases []LeaseID, history History) error
	// Revoke declares leases dead, and hands off or frees what they held. It is
	// for a sidecar's own leases: they need not have expired. The waiters that
	// stood in line under them are dropped. A lease whose hold is not over (MinHold)
	// stands from now on until it is.
	Revoke(ctx context.Context, leases []LeaseID) error
	// ReapInstance buries the renewed leases of an instance that runs no more, as
	// Revoke does.
	ReapInstance(ctx context.Context, instance string) error
	// Sweep buries leases that expired a while ago and tidies up what only costs
	// space. It may take minutes where there is much, in small steps with pauses between
	// them, and ends with ctx. It is cheap when another instance does it in this moment, or did
	// a short while ago.
	Sweep(ctx context.Context) error

	// Acquire takes each key that is free, or whose holder's lease is dead or can
	// be buried. Outcomes: Granted, Held, LeaseLost, RowLocked.
	Acquire(ctx context.Context, asks []Ask) ([]Answer, error)
	// Enqueue does the same, but stands in line for a key that is held. Outcomes:
	// Granted, Queued, LeaseLost, RowLocked. An Ask of an Enqueue needs a living Lease, for
	// bind:ttl too: it keeps the place in the queue.
	Enqueue(ctx context.Context, asks []Ask) ([]Answer, error)
	// Check tells what became of waiters, and buries expired leases that
	// hold the keys they wait for. Outcomes: Granted, Queued, Skipped, Gone. A waiter
	// that was skipped is remembered, with the result, until Cancel.
	Check(ctx context.Context, waits []Attempt) ([]Answer, error)
	// Cancel takes waiters out of their queues. Outcomes: Gone; Granted for one
	// that got its lock before: it holds it then, and the caller decides; Skipped
	// for one that was skipped before: it is forgotten now; or RowLocked. What another
	// instance keeps of the same attempt, repeated there, is left alone: that is Gone here.
	Cancel(ctx context.Context, waits []Attempt) ([]Answer, error)
	// Withdraw frees what attempts hold or wait for, for attempts whose outcome is
	// unknown. It blocks until an attempt that is under way in the store is decided.
	// One that has not reached the store yet is not seen: callers undo once more,
	// twice the store's timeout after the attempt; by then the store refuses it. What
	// another instance has of the same attempt, repeated there, is left alone: its
	// place in line, a bind:ttl lock of which it may have told somebody, and a lock that
	// its hold keeps because it is gone. A grant whose lease had ended before has expired,
	// for whoever asks. Outcomes: Gone, RowLocked.
	Withdraw(ctx context.Context, attempts []Attempt) ([]Outcome, error)

	// Release frees locks, or hands them to the first living waiter. With the Outcome
	// Success, waiters that asked for it are skipped, in one transaction with the
	// release. A lock with a hold that is not over is released, but kept: its lease
	// stands. A claim that is right but for its lease, which has Expired, ends the grant,
	// too: a renewal that is under way must not keep the lock for nobody. Repeated with
	// its Lease, a Release sends its news again; without one, it may.
	Release(ctx context.Context, claims []Claim) ([]Verdict, error)
	// Amend checks that locks are held under their tokens, and changes their data
	// and, for bind:ttl locks, their remaining time.
	Amend(ctx context.Context, changes []Change) ([]Verdict, error)

	// Signal asks holders for something, whoever they are. Standings: Holds (a Stop is
	// noted in the lock; a session's holder will be told, and those who watch hear of a
	// Stop if there is a holder, for a hold alone may keep the lock, but perhaps not of one
	// that only has another reason than the one before; a Break of a lock that no
	// session claims, because it is bind:ttl or its lease stands, is done), UnknownToken
	// (nobody holds the key), ClaimRowLocked. A Break of a session's lock ends its MinHold at
	// once, so that it is free at its lease's end even if its sidecar is gone.
	Signal(ctx context.Context, signals []Signal) ([]ClaimStatus, error)
	// Signals returns what holders under these leases of this instance are asked for.
	// It returns them again and again until they are Heard or their lease is dead.
	Signals(ctx context.Context, leases []LeaseID) ([]Signal, error)
	// Heard forgets signals. Those that are not there any more are no error.
	Acknowledge(ctx context.Context, signals []SignalID) error

	// Watch makes this instance hear, as news, the events of keys, until Unwatch or
	// until the lease is dead: those of its own doing it may hear until it knows that. It
	// may be repeated, also under another lease. It fails when the lease does not live.
	Watch(ctx context.Context, keys []string, lease LeaseID) error
	// Unwatch ends that.
	Unwatch(ctx context.Context, keys []string) error

	// Get reads locks.
	Get(ctx context.Context, keys []string) ([]Lock, error)
	// List reads held locks, ordered by the bytes of their keys.
	List(ctx context.Context, query Query) ([]Lock, error)

	// Stats counts what the whole database holds, in all namespaces. It may read every
	// lock that there is, so it is for people and for one sidecar of many: see Elect.
	Stats(ctx context.Context) (Stats, error)
	// Elect makes one instance of all that use the database, whatever their namespace,
	// the one that reads Stats for all. It is elected, or elected again, for the term
	// from now on; or it hears how long another instance still is. A term of zero gives
	// the office up.
	Elect(ctx context.Context, term time.Duration) (Election, error)
}

// Traits are differences between stores that their users may profit from.
type Traits struct {
	// Inline: operations take microseconds and never block; batching would only
	// add a detour.
	Inline bool
	// Polls: news of waiters that were granted by other instances does not
	// arrive by itself now, so waits must be checked every poll interval.
	Polls bool
}

// Immediate is what a store whose operations are Inline may offer besides: the most
// frequent of them for a single item, without the slices.
type Immediate interface {
	AcquireOne(ctx context.Context, ask Ask) (Answer, error)
	ReleaseOne(ctx context.Context, claim Claim) (Verdict, error)
}
