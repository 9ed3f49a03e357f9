package store

import (
	"context"
	"fmt"
	"time"
)

// As returns a store's capability, or an [UnsupportedError] with its name.
func As[Capability any](s Store, name string) (Capability, error) {
	c, ok := s.(Capability)
	if !ok {
		return c, &UnsupportedError{Capability: name}
	}
	return c, nil
}

// Lacking returns the names of the capabilities that a store does not have, as GET /v1 names them.
func Lacking(s Store) []string {
	var names []string
	if _, ok := s.(Lister); !ok {
		names = append(names, FeatureList)
	}
	if _, ok := s.(Signaler); !ok {
		names = append(names, FeatureStop)
	}
	if _, ok := s.(Watcher); !ok {
		names = append(names, FeatureEvents)
	}
	if _, ok := s.(Census); !ok {
		names = append(names, FeatureStats)
	}
	if _, ok := s.(Waiters); !ok {
		names = append(names, FeatureWaiters)
	}
	if !s.Traits().Shared {
		names = append(names, FeatureShared)
	}
	return names
}

// Details returns what a store tells operators about its server, or nil: see [Described].
func Details(s Store) map[string]string {
	if d, ok := s.(Described); ok {
		return d.Details()
	}
	return nil
}

// The names of capabilities among the features of GET /v1.
const (
	FeatureList    = "list"    // Lister
	FeatureStop    = "stop"    // Signaler
	FeatureEvents  = "events"  // Watcher
	FeatureStats   = "stats"   // Census
	FeatureWaiters = "waiters" // Waiters
	FeatureShared  = "shared"  // the Trait Shared
)

// UnsupportedError says that the engine lacks a capability.
type UnsupportedError struct {
	// Capability is its name among the features of GET /v1, or the name of an operation.
	Capability string
	// Why is the whole text if the reason is not the engine but its configuration.
	Why string
}

func (e *UnsupportedError) Error() string {
	if e.Why != "" {
		return e.Why
	}
	return "this store does not support " + e.Capability
}

// Lister is an engine that can read locks in the order of their keys.
type Lister interface {
	// List reads held locks, ordered by the bytes of their keys.
	List(ctx context.Context, query Query) ([]Lock, error)
}

// Waiters is an engine that can read queues.
type Waiters interface {
	// Waiting reads waiters, ordered by the bytes of their keys. Waiters of one key are in queue order.
	Waiting(ctx context.Context, query WaitQuery) ([]Waiting, error)
}

// Signaler is an engine that can send a request to a holder.
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

// Watcher is an engine that can report what happens to a key.
type Watcher interface {
	// Watch reports the events of keys to this instance as news, until Unwatch or until the lease is dead.
	// Events that this instance causes may be reported until it knows that the lease is dead. Watch may be
	// repeated, also under another lease. It fails if the lease is not alive.
	Watch(ctx context.Context, keys []string, lease LeaseID) error
	// Unwatch ends the watches of these keys.
	Unwatch(ctx context.Context, keys []string) error
}

// Mover is an engine that can forget what it has confirmed, for instance by a failover to a server with older data.
// Its renewals name the leases that were opened in another history. The sidecar then verifies the locks that it
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

// Reaper is an engine in which the rows of an expired lease stay until the lease is reaped.
type Reaper interface {
	// ReapInstance revokes the renewed leases of an instance that no longer runs.
	ReapInstance(ctx context.Context, instance string) error
	// Sweep reaps leases that expired a while ago and deletes rows that only cost space. It may take minutes,
	// in small steps with pauses, and ends with ctx. If another instance sweeps now, or did recently, Sweep
	// returns early.
	Sweep(ctx context.Context) error
}

// Census is an engine that can count what it holds.
type Census interface {
	// Stats counts what the whole database holds, in all namespaces. It may read every lock, so only
	// operators and one elected sidecar call it.
	Stats(ctx context.Context) (Stats, error)
	// Elect chooses the one instance that reads Stats for all instances of the database, in all namespaces.
	// If it elects or re-elects the caller, the term begins now. Otherwise the answer says how long another
	// instance remains elected. A term of zero resigns.
	Elect(ctx context.Context, term time.Duration) (Election, error)
}

// LargestToken is the largest token. JSON readers represent greater integers inexactly.
const LargestToken = 1<<53 - 1

// largestFirst is the largest token at which tokens may begin. It leaves as many for later grants.
const largestFirst = LargestToken / 2

// CheckRaise returns an error if tokens cannot begin at first, because too few would be left.
func CheckRaise(first int64) error {
	if first > largestFirst {
		return &Error{Op: "RaiseTokens", Err: fmt.Errorf("tokens cannot begin at %d: at most at %d, because the largest one is %d", first, int64(largestFirst), int64(LargestToken))}
	}
	return nil
}

// Tokens is an engine that can take another one's place: its tokens can go on where those of the other ended.
type Tokens interface {
	// NextToken returns a number above every token that was granted or reserved so far, in all namespaces. Later grants
	// may reach it, so it is asked for when nobody holds a lock any more. It fails during a quiet time.
	NextToken(ctx context.Context) (int64, error)
	// RaiseTokens makes the token of each grant that begins later at least first. It is called while nobody holds or awaits
	// a lock here, because a sidecar that does so may still grant tokens that it has reserved. An engine may refuse it then.
	// It refuses more than half of [LargestToken].
	RaiseTokens(ctx context.Context, first int64) error
}

// Described is an engine that tells operators how its server keeps what it grants.
type Described interface {
	// Details are facts about the server, by their names, such as its version and whether grants reach a disk. They contain
	// neither hosts nor users. They are empty until a server was reached.
	Details() map[string]string
}

// Quieter is an engine that grants nothing for a while after it may have forgotten grants: see [Quiet].
type Quieter interface {
	// Quiet is the rest of the quiet time as far as this instance knows, or 0. Of several servers, the longest counts, and
	// others may grant meanwhile. It does not ask a server.
	Quiet() time.Duration
}

// QuietFor is the rest of a store's quiet time, or 0: see [Quieter].
func QuietFor(s Store) time.Duration {
	if q, ok := s.(Quieter); ok {
		return q.Quiet()
	}
	return 0
}

// Listener is an engine for which receiving news has a cost, for instance a connection.
type Listener interface {
	// Listen says whether this instance has leases, or soon will have: waiters, locks and watches need a lease. It
	// does not block. A later Watch, or ask that waits, takes effect only when the engine receives news, if it can.
	Listen(on bool)
}

// Joiner is an engine that can acquire and release with the same requests, for less than two operations cost.
type Joiner interface {
	// AcquireAndRelease is Acquire and Release, with the error of each. If a key is in both, the release comes first.
	AcquireAndRelease(ctx context.Context, asks []Ask, claims []Claim) (answers []Answer, failed error, verdicts []Verdict, failedToo error)
}

// Immediate is an engine with the Trait Inline. Its most frequent operations also exist for a single item,
// without slices.
type Immediate interface {
	AcquireOne(ctx context.Context, ask Ask) (Answer, error)
	ReleaseOne(ctx context.Context, claim Claim) (Verdict, error)
}
