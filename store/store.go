package store

import (
	"context"
	"time"

	"github.com/google/uuid"
)

// LeaseID names a lease. It is random and never used again. The zero value names no lease.
type LeaseID = uuid.UUID

// AttemptID names one attempt to get one key, from the first question until the grant ends. It is random,
// or derived from a request_id.
type AttemptID = uuid.UUID

// HalfID is the first half of an AttemptID. News may name a waiter only by this half.
type HalfID [8]byte

// HalfOf returns the first half of an attempt's id.
func HalfOf(id AttemptID) HalfID { return HalfID(id[:8]) }

// Identity is the sidecar that uses a store.
type Identity struct {
	// Namespace separates keys: locks of different namespaces never meet.
	Namespace string
	// Instance names one run of a sidecar: the pod's name and a random part.
	Instance string
	// Pod is the pod (or host) that the sidecar serves.
	Pod string
}

// Space is what the stores of one process share, as far as an engine can: the connections, the subscription to news, the statements that renew
// leases. Each of its views is the [Store] of one instance. Views share no leases, locks or news: one that ends or fails takes nothing
// from the others. One that floods the server with calls delays a call of another one by a statement, and its renewals not at all. Only a renewal whose
// lease another session keeps locked needs a main connection, and takes its turn for it as a call does.
type Space interface {
	// Start makes the space usable. It returns an error at once if the configuration can never work. If only the server is unreachable, the
	// space keeps trying, and its views are not ready. ctx limits Start only.
	Start(ctx context.Context) error
	// Stop ends the background work and closes all connections. The views are stopped before. It blocks. It may be called repeatedly, and before Start.
	Stop()
	// View makes the view of an instance, which is started and stopped by itself, while the space runs. An instance has one view.
	View(id Identity) Store
}

// Store is the core that every engine implements. All methods are safe for concurrent use. [Unavailable]
// and [OutcomeUnknown] classify its errors.
type Store interface {
	// Start makes the store usable, if its space is. It returns an error at once if the configuration can never work. If only
	// the server is unreachable, the store keeps trying, and Ready reports an error. ctx limits Start only.
	//
	// The store calls news with hand-offs to waiters, signals to holders and events of watched keys, after
	// the commit, from any goroutine. news must not block. News is a hint that may be lost, so Check, Signals
	// and Get decide. A nil func means that no news is needed.
	Start(ctx context.Context, news func(News)) error
	// Stop ends the background work, and waits for operations in flight. It blocks. It may be called repeatedly, and before Start. Other
	// views of its space go on.
	Stop()
	// Ready is nil if operations may succeed now; otherwise the error says why not. It does not ask the server.
	Ready() error
	// Traits says how callers use this store well now. If Polls changes, news of [EveryWait] follows.
	Traits() Traits

	// OpenLeases makes renewed leases that live for their TTL from now on.
	OpenLeases(ctx context.Context, leases []NewLease) error
	// Renew extends the living leases among these by their TTL, in one statement. It returns those that it
	// extended, also with an error. If there is no error, each of the other leases is expired or dead, and
	// the caller must never trust it again.
	Renew(ctx context.Context, leases []LeaseID) (Renewal, error)
	// Revoke declares a sidecar's own leases dead, expired or not. It hands off or frees the keys that they
	// held, and drops the waiters under them. A MinHold that is not over still keeps its key.
	Revoke(ctx context.Context, leases []LeaseID) error

	// Acquire takes each key that is free, or whose holder's lease is dead or can be reaped. Outcomes: Granted,
	// Held, LeaseLost, RowLocked, Quiet, LimitMismatch.
	Acquire(ctx context.Context, asks []Ask) ([]Answer, error)
	// Enqueue does as Acquire, and queues the asks whose keys it did not get. Each ask needs a living Lease, also for
	// bind:ttl, because the lease keeps the queue position. Outcomes: Granted, Queued, QueueFull, LeaseLost, RowLocked,
	// LimitMismatch; Skipped for an attempt that was skipped before.
	Enqueue(ctx context.Context, asks []Ask) ([]Answer, error)
	// Check returns what became of waiters, and reaps expired leases that hold their keys. Outcomes: Granted,
	// Queued, Skipped, Gone. The store remembers a skipped waiter, with the result, until Cancel.
	Check(ctx context.Context, waits []Attempt) ([]Answer, error)
	// Cancel takes waiters out of their queues. Outcomes: Gone; Granted if the waiter got its lock before (the lock
	// stays held, and the caller decides); Skipped if it was skipped before (the store forgets it now); RowLocked. If
	// the attempt was repeated through another instance, Cancel leaves what that instance keeps, and answers Gone.
	Cancel(ctx context.Context, waits []Attempt) ([]Answer, error)
	// Withdraw frees what attempts with an unknown outcome hold or wait for. It blocks until the store has
	// decided an attempt that is in flight. An attempt that has not reached the store yet is not found.
	// Therefore callers withdraw once more, twice the store's timeout after the attempt, when the store
	// refuses the attempt, and again until the answer is not Unsettled. If the attempt was repeated through another instance, Withdraw leaves what that
	// instance has: its queue position, a bind:ttl lock that it may have delivered, and a key that its
	// MinHold keeps. A grant whose lease ended before counts as expired. Outcomes: Gone, Unsettled, RowLocked.
	Withdraw(ctx context.Context, attempts []Attempt) ([]Outcome, error)

	// Release frees locks, or hands them to the first living waiter. With the Outcome Success, waiters with
	// Skip are skipped in the same transaction. If the MinHold is not over, the lock is released but the key
	// stays kept. If the lease of a right claim has Expired, Release ends the grant too, because otherwise a
	// renewal in flight could keep the lock without an owner. A repeated Release sends its news again if the
	// claim names a Lease; otherwise it may.
	Release(ctx context.Context, claims []Claim) ([]Verdict, error)
	// Amend checks that locks are held under their tokens. It changes their data, and the remaining time of
	// bind:ttl locks. Amend, Downgrade and Adopt make a Keepable grant one that is not: from then on, the holder that others see is the
	// one that holds the key. The first waiter is told to check: a try of another sidecar may wait only to learn
	// whether a session holds the key.
	Amend(ctx context.Context, changes []Change) ([]Amended, error)
	// Downgrade is Amend, and turns exclusive locks into shares with the same token. It grants the waiters at the
	// head of the queue that fit then. The share takes the Limit of the living shared waiters, or no limit if
	// there are none. The lock's cohort ends. A lock that is a share already stays as it is; waiters that fit are
	// granted, because an earlier Downgrade may have ended before that.
	Downgrade(ctx context.Context, changes []Change) ([]Amended, error)
	// Adopt is Amend, and makes the last served waiter of a cohort the holder that the store knows. All served waiters
	// leave the queue. If the store knows this holder already, or a later one, it stays. Of a Keepable grant, the only served attempt may be
	// one that never was a waiter.
	Adopt(ctx context.Context, adoptions []Adoption) ([]Amended, error)

	// Get reads locks.
	Get(ctx context.Context, keys []string) ([]Lock, error)
	// List reads held locks, ordered by the bytes of their keys.
	List(ctx context.Context, query Query) ([]Lock, error)
	// Waiting reads waiters, ordered by the bytes of their keys. Waiters of one key are in queue order.
	Waiting(ctx context.Context, query WaitQuery) ([]Waiting, error)

	Signaler
	Watcher
	Mover
	Reaper
	Census
	Elector
}

// Signaler is the part of a [Store] that sends requests to holders.
type Signaler interface {
	// Signal sends requests to the holders of keys. For a shared lock, a request is for one holder or for
	// all. Claim statuses: Holds, UnknownToken (the key has no holder), ClaimRowLocked. After Holds:
	//   - a Stop is noted in the lock. A session's holder is notified. Watchers are notified if there is a
	//     holder (otherwise only a MinHold keeps the key). If only the reason is new, watchers may not be
	//     notified.
	//   - a Break ends a lock that no session claims (bind:ttl, or kept by its MinHold). A Break of a
	//     session's lock ends its MinHold at once. So the key is free at the end of the lease even if its
	//     sidecar is gone.
	Signal(ctx context.Context, signals []Signal) ([]ClaimStatus, error)
	// Signals returns the requests to holders under these leases of this instance. It returns a signal until
	// the signal is acknowledged or the lease is dead.
	Signals(ctx context.Context, leases []LeaseID) ([]Signal, error)
	// Acknowledge forgets signals. Missing ones are no error.
	Acknowledge(ctx context.Context, signals []SignalID) error
}

// Watcher is the part of a [Store] that reports what happens to a key.
type Watcher interface {
	// Watch reports the events of keys to this instance as news, until Unwatch or until the lease is dead.
	// Events that this instance causes may be reported until it knows that the lease is dead. Watch may be
	// repeated, also under another lease. It fails if the lease is not alive.
	Watch(ctx context.Context, keys []string, lease LeaseID) error
	// Unwatch ends the watches of these keys.
	Unwatch(ctx context.Context, keys []string) error
}

// Mover is the part of a [Store] for engines that can forget what they have confirmed, for instance by a failover to a server
// with older data. Their renewals name the leases that were opened in another history. The sidecar then verifies the locks that it
// believes to be held under these leases, moves them to a fresh lease, and revokes the old leases.
type Mover interface {
	// HeldUnder returns the locks of these keys that are held under renewed leases of this instance. A shared
	// lock may have several grants.
	HeldUnder(ctx context.Context, keys []string) (HeldGrants, error)
	// Move moves locks and waits from one lease of this instance to another. Tokens and queue
	// positions stay. A repeat is safe, and a late Move does nothing: a lock under a third lease
	// stays there. Statuses: Holds (it is under the new lease), Expired (one of the two leases
	// ended), UnknownToken, Released, OtherSession (it is under neither lease), ClaimRowLocked.
	Move(ctx context.Context, from, to LeaseID, moves []Move) ([]ClaimStatus, error)
}

// Reaper is the part of a [Store] that reaps what others have left: the rows of an expired lease may stay until then.
type Reaper interface {
	// ReapInstance revokes the renewed leases of an instance that no longer runs.
	ReapInstance(ctx context.Context, instance string) error
	// Sweep reaps leases that expired a while ago and deletes rows that only cost space. It may take minutes,
	// in small steps with pauses, and ends with ctx. If another instance sweeps now, or did recently, Sweep
	// returns early.
	Sweep(ctx context.Context) error
}

// Census is the part of a [Store] that counts what it holds.
type Census interface {
	// Stats counts what the whole database holds, in all namespaces. It may read every lock, so only
	// operators and one elected sidecar call it.
	Stats(ctx context.Context) (Stats, error)
}

// Elector is the part of a [Store] that chooses one of its instances.
type Elector interface {
	// Elect chooses the one instance that reads Stats for all instances of the database, in all namespaces.
	// If it elects or re-elects the caller, the term begins now. Otherwise the answer says how long another
	// instance remains elected. A term of zero resigns.
	Elect(ctx context.Context, term time.Duration) (Election, error)
}

// Traits are properties in which engines differ and which callers use.
type Traits struct {
	// Inline: operations take microseconds and never block, so callers do not batch them.
	Inline bool
	// Polls: news of waiters that other instances granted does not arrive now. So callers check waits every
	// poll interval.
	Polls bool
	// Final: a lease is dead when it expires, and nobody needs to reap it. What it held is handed on when somebody
	// next looks at the key.
	Final bool
	// Hears: a Recall by another instance arrives here soon, as far as this instance knows. Without it, a key must not be kept. It may end
	// without news, so callers look at it while they keep keys.
	Hears bool
	// HearsAlways: to hear of recalls costs the engine nothing, so it does that without [Keeper].
	HearsAlways bool
	// LongestQueue is the greatest number of waiters of a key; zero means that the engine sets no limit.
	LongestQueue int
}
