// Package store says what a lock store must do, whatever is behind it: an embedded map
// (store/memory) or a PostgreSQL database (store/postgres).
//
// # Words
//
// A lease says "alive until T". Any number of locks are held under one renewed lease; each bind:ttl
// lock has an unrenewed lease of its own. A lock is a key that is free, or held by a lease under a
// grant. A grant is one successful acquisition: a fencing token, and an AttemptID that the asker
// made before it asked. A waiter is an asker in a key's FIFO queue, known by the same AttemptID.
//
// A lock has one exclusive holder, or any number of shared ones. A share is a grant of its own, with its
// token, lease and data. With a limit, the key is a semaphore: at most so many shares are held at a time,
// and each has a slot, a number that no other holder has.
//
// A missing lease is dead; ids are never used again, so death is final. A lease past its expiry is
// not dead yet: its holder may be renewing it in this moment. To reap a lease is to declare it
// dead. Only so do locks leave an owner that did not release them.
//
// A lock with a MinHold keeps its key until the hold is over, even if it was released or its lease
// is dead. The hold is pending then: the key counts as held, though nobody can claim it, and goes
// to the first living waiter afterwards.
//
// # What every store promises
//
//  1. At most one unexpired grant of a key, judged by the store's own clock; or shares alone, never
//     more than their limit, with different slots. An expired share counts until it is reaped.
//  2. The tokens of a key strictly grow in the order of its grants, over both modes, through releases,
//     restarts and sweeps.
//  3. Nothing is reported as granted before it is committed.
//  4. A key with living waiters is never free: a release, a cancel or a reap hands it to the first of
//     them (the hand-off), and if that one is shared, to all directly behind it that fit: shared ones
//     up to the limit. The same happens to the waiters of a shared lock whenever one at the head fits.
//     Nobody is granted a key while an earlier living waiter waits. A skipped waiter waits no more. An
//     engine may tell with a hand-off which waiters are next (the cohort): see Answer.Cohort.
//  5. An operation may be repeated. With the same AttemptID, an Acquire finds what the first one did;
//     a repeated Release finds the lock released or in other hands and changes nothing.
//
// Every operation takes many items and answers each, in their order. Callers name a key only once among
// the items of one call. Asks that wait, Check, Cancel and Withdraw are the exceptions: several
// attempts may name the same key, and asks that wait are queued in their order. If somebody else keeps
// an item's row locked for long (an operator's open transaction), only that item is answered with
// RowLocked or ClaimRowLocked: nothing was done for it, and the caller asks again for it alone.
//
// # Core and capabilities
//
// Every engine implements [Store]. Capabilities that only some engines have are interfaces: [Lister],
// [Waiters], [Signaler], [Watcher], [Mover], [Reaper], [Census], [Listener] and [Immediate]. Callers ask for
// them with [As]. The suite store/storetest tests every engine against this page, with the cases of its
// capabilities and traits.
package store

import (
	"context"

	"github.com/google/uuid"
)

// LeaseID names a lease. It is random and never used again. The zero value names no lease.
type LeaseID = uuid.UUID

// AttemptID names one attempt to get one key, from before the store is asked until the grant ends.
// It is random, or derived from a request_id.
type AttemptID = uuid.UUID

// HalfID is the first half of an AttemptID, by which a waiter is told to look.
type HalfID [8]byte

// HalfOf is the first half of an attempt's id.
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

// Store is what every engine can do: it grants locks. All methods are safe for concurrent use.
// Errors are judged with [Unavailable] and [OutcomeUnknown].
type Store interface {
	// Start makes the store usable. It fails at once on what can never work. If a server cannot be
	// reached, the store goes on trying, and Ready says so. ctx limits Start only.
	//
	// news is called with hand-offs to waiters, signals to holders and events of watched keys,
	// after the commit, from any goroutine. It must not block. News is a hint that may be lost;
	// Check, Signals and Get are the truth. nil: nobody needs news.
	Start(ctx context.Context, news func(News)) error
	// Stop ends what runs in the background and gives up all connections. It blocks. It may be
	// called repeatedly, and before Start.
	Stop()
	// Ready is nil if operations have a chance to succeed, else why not. It does not ask the server.
	Ready() error
	// Traits tells callers how to use this store well now. If Polls changes, news of [EveryWait] follows.
	Traits() Traits

	// OpenLeases makes renewed leases that live for their TTL from now on.
	OpenLeases(ctx context.Context, leases []NewLease) error
	// Renew extends the leases that are alive by their TTL, in one statement. It returns those that
	// it extended, also with an error. Without an error, a lease that is not among them is expired
	// or dead: it must never be trusted again.
	Renew(ctx context.Context, leases []LeaseID) (Renewal, error)
	// Revoke declares a sidecar's own leases dead, expired or not, and hands off or frees what they
	// held. The waiters that were queued under them are dropped. A key whose MinHold is not over is
	// kept until it is.
	Revoke(ctx context.Context, leases []LeaseID) error

	// Acquire takes each key that is free, or whose holder's lease is dead or can be reaped. An ask
	// that waits is queued if its key is held; it needs a living Lease, also for bind:ttl, which
	// keeps the queue position. The asks of one call all wait, or none does. Outcomes: Granted,
	// Held or (if it waits) Queued, LeaseLost, RowLocked, Quiet, LimitMismatch.
	Acquire(ctx context.Context, asks []Ask) ([]Answer, error)
	// Check tells what became of waiters, and reaps expired leases that hold their keys. Outcomes:
	// Granted, Queued, Skipped, Gone. A skipped waiter is remembered, with the result, until Cancel.
	Check(ctx context.Context, waits []Attempt) ([]Answer, error)
	// Cancel takes waiters out of their queues. Outcomes: Gone; Granted for one that got its lock
	// before: it holds it, and the caller decides; Skipped for one that was skipped before: it is
	// forgotten now; RowLocked. If the attempt was repeated through another instance, what that
	// instance keeps is left alone: that is Gone here.
	Cancel(ctx context.Context, waits []Attempt) ([]Answer, error)
	// Withdraw frees what attempts hold or wait for, if their outcome is unknown. It blocks until an
	// attempt that is in flight in the store is decided. It does not see an attempt that has not reached
	// the store yet: callers withdraw once more, twice the store's timeout after the attempt; by then the
	// store refuses it. If the attempt was repeated through another instance, what that instance has is
	// left alone: its queue position, a bind:ttl lock that it may have delivered, and a key that its
	// MinHold keeps. A grant whose lease ended before counts as expired. Outcomes: Gone, RowLocked.
	Withdraw(ctx context.Context, attempts []Attempt) ([]Outcome, error)

	// Release frees locks, or hands them to the first living waiter. With the Outcome Success,
	// waiters that asked for it are skipped, in the same transaction. If the MinHold is not over,
	// the lock is released and the key is kept. If a claim is right and its lease has Expired,
	// Release ends the grant too: a renewal in flight must not keep the lock for nobody. Repeated
	// with its Lease, a Release sends its news again; without one, it may.
	Release(ctx context.Context, claims []Claim) ([]Verdict, error)
	// Amend checks that locks are held under their tokens, and changes their data and, for bind:ttl
	// locks, their remaining time. It may turn an exclusive lock into a share.
	Amend(ctx context.Context, changes []Change) ([]Verdict, error)
	// Get reads locks.
	Get(ctx context.Context, keys []string) ([]Lock, error)
}

// Traits are differences between engines that their users may profit from.
type Traits struct {
	// Inline: operations take microseconds and never block, so batching would only be a detour.
	Inline bool
	// Polls: news of waiters that other instances granted does not arrive now, so waits must be
	// checked every poll interval.
	Polls bool
	// Shared: it grants shares. It never changes.
	Shared bool
}
