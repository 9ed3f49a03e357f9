package store

import (
	"context"
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

// The names of capabilities among the features of GET /v1.
const (
	FeatureList    = "list"    // Lister
	FeatureStop    = "stop"    // Signaler
	FeatureEvents  = "events"  // Watcher
	FeatureStats   = "stats"   // Census
	FeatureWaiters = "waiters" // Waiters
	FeatureShared  = "shared"  // the Trait Shared
)

// UnsupportedError: the engine lacks a capability.
type UnsupportedError struct {
	// Capability is its name among the features of GET /v1.
	Capability string
}

func (e *UnsupportedError) Error() string {
	return "this store does not support " + e.Capability
}

// Lister is an engine that can read locks in the order of their keys.
type Lister interface {
	// List reads held locks, ordered by the bytes of their keys.
	List(ctx context.Context, query Query) ([]Lock, error)
}

// Waiters is an engine that can read queues.
type Waiters interface {
	// Waiting reads waiters, ordered by the bytes of their keys, and those of a key by their order in
	// the queue.
	Waiting(ctx context.Context, query WaitQuery) ([]Waiting, error)
}

// Signaler is an engine that can tell a holder something.
type Signaler interface {
	// Signal asks the holders of keys for something, and of a shared lock one or all. Claim statuses: Holds, UnknownToken (nobody
	// holds the key), ClaimRowLocked. If it Holds:
	//   - a Stop is noted in the lock. A session's holder will be told, and watchers hear of it if
	//     there is a holder (a MinHold alone may keep the key). If only the reason is new, watchers may
	//     not hear of it.
	//   - a Break of a lock that no session claims (bind:ttl, or kept by its MinHold) is done. A Break
	//     of a session's lock ends its MinHold at once, so that it is free at its lease's end even if
	//     its sidecar is gone.
	Signal(ctx context.Context, signals []Signal) ([]ClaimStatus, error)
	// Signals returns what holders under these leases of this instance are asked for, again and
	// again until it is acknowledged or the lease is dead.
	Signals(ctx context.Context, leases []LeaseID) ([]Signal, error)
	// Acknowledge forgets signals. Missing ones are no error.
	Acknowledge(ctx context.Context, signals []SignalID) error
}

// Watcher is an engine that can tell what happens to a key.
type Watcher interface {
	// Watch makes this instance hear, as news, the events of keys, until Unwatch or until the lease
	// is dead: those of its own doing it may hear until it knows that. It may be repeated, also
	// under another lease. It fails if the lease does not live.
	Watch(ctx context.Context, keys []string, lease LeaseID) error
	// Unwatch ends that.
	Unwatch(ctx context.Context, keys []string) error
}

// Mover is an engine that can forget what it has confirmed, as by a failover to a server that knew
// less. Its renewals name the leases of another history. Their sidecar verifies what it believes to
// be held under them, moves that to a fresh lease, and revokes the old one with the rest.
type Mover interface {
	// HeldUnder returns which of these keys' locks are held under renewed leases of this instance. Of a
	// shared lock, there may be several grants.
	HeldUnder(ctx context.Context, keys []string) (HeldGrants, error)
	// Move moves locks and waits from one lease of this instance to another. Tokens and queue
	// positions stay. A repeat is safe, and a late Move does nothing: a lock under a third lease
	// stays there. Statuses: Holds (it is under the new lease), Expired (one of the two leases
	// ended), UnknownToken, Released, OtherSession (it is under neither lease), ClaimRowLocked.
	Move(ctx context.Context, from, to LeaseID, moves []Move) ([]ClaimStatus, error)
}

// Reaper is an engine whose expired leases do not vanish by themselves.
type Reaper interface {
	// ReapInstance revokes the renewed leases of an instance that runs no more.
	ReapInstance(ctx context.Context, instance string) error
	// Sweep reaps leases that expired a while ago and deletes what only costs space. It may take
	// minutes, in small steps with pauses; it ends with ctx. It is cheap if another instance does
	// it now, or did a short while ago.
	Sweep(ctx context.Context) error
}

// Census is an engine that can count what it holds.
type Census interface {
	// Stats counts what the whole database holds, in all namespaces. It may read every lock, so it
	// is for people and for one elected sidecar.
	Stats(ctx context.Context) (Stats, error)
	// Elect makes one instance of all that use the database, whatever their namespace, the one that
	// reads Stats for all. It is elected, or elected again, for the term from now on; or it hears
	// how long another instance still is. A term of zero gives the office up.
	Elect(ctx context.Context, term time.Duration) (Election, error)
}

// Listener is an engine that pays for news, for instance with a connection.
type Listener interface {
	// Listen says whether this instance has leases, or soon will have: waiters, locks and watches
	// need one. It does not block. A later ask that waits, or Watch, takes effect only when this
	// instance hears news, if it can.
	Listen(on bool)
}

// Immediate is an engine with the Trait Inline that takes single items of the most frequent
// operations, without slices.
type Immediate interface {
	AcquireOne(ctx context.Context, ask Ask) (Answer, error)
	ReleaseOne(ctx context.Context, claim Claim) (Verdict, error)
}
