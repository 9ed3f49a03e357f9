package store

import (
	"slices"
	"time"
)

// Lock is the state of a key.
type Lock struct {
	Key string
	// Held: a living lease holds the key, or a pending hold keeps it. Only then is the rest of the holder set.
	Held bool
	// Shared: shared holders have the key. Token, Holder and Stopping are those of the oldest grant.
	Shared bool
	// Expired: the key is not held, and the lease of the grant under Token ended before a release. If Token
	// is zero, the store remembers no grant.
	Expired     bool
	Token       int64
	Holder      Holder
	QueueLength int
	// Kept: the grant under Token is Keepable, so the holder's instance may keep the key for its next session, though the session that is shown
	// has released it.
	Kept bool
	// Stopping is set when the holder was asked to stop.
	Stopping *Stopping
	// Limit is the one that all shared holders and shared waiters name; zero means none. It is also set if
	// only shared waiters exist, behind an exclusive holder.
	Limit int
	// HoldersCount is the number of shared holders. Holders are the first of them in token order, at most
	// [HoldersShown].
	HoldersCount int
	Holders      []Share
	// NextEnd is the smallest ExpiresIn of all shared holders.
	NextEnd time.Duration
}

// Aged is the lock after the time d, as far as it is known if nothing happened meanwhile.
func (l *Lock) Aged(d time.Duration) Lock {
	aged := *l
	aged.Holder.age(d)
	aged.NextEnd = max(l.NextEnd-d, 0)
	aged.Holders = slices.Clone(l.Holders)
	for i := range aged.Holders {
		aged.Holders[i].age(d)
	}
	return aged
}

// HoldersShown limits the shared holders that a Lock shows, BlockersShown those that an Answer shows.
const (
	HoldersShown  = 100
	BlockersShown = 8
)

// Share is one shared holder of a lock.
type Share struct {
	Token int64
	// Slot is the smallest number from 0 on that no other holder had at the time of the grant. Without a
	// Limit, Slot is zero.
	Slot int
	// Stopping is set when this holder was asked to stop.
	Stopping *Stopping
	Holder
}

// Holder describes the holder of a lock.
type Holder struct {
	Instance, Pod string
	// Session is the session's public name. It is empty for bind:ttl.
	Session, Owner string
	// Lease holds the lock; Renewed is false for bind:ttl.
	Lease   LeaseID
	Renewed bool
	// HoldPending: the lock was released, or its lease has ended, but its MinHold still keeps the key.
	// ExpiresIn then counts to the end of the hold.
	HoldPending bool
	AcquiredAt  time.Time
	HeldFor     time.Duration
	// ExpiresIn is how long the key stays held without a further renewal or release.
	ExpiresIn   time.Duration
	Data        []byte
	Traceparent string
}

func (h *Holder) age(d time.Duration) {
	h.HeldFor += d
	h.ExpiresIn = max(h.ExpiresIn-d, 0)
}

// Query selects held locks.
type Query struct {
	// Namespace is another namespace than the store's own: see [Elsewhere]. Empty: its own.
	Namespace string
	// Instance selects locks that were granted by that instance, and shared locks with a holder of that
	// instance. Empty selects all.
	Instance string
	// Prefix selects keys that begin with it.
	Prefix string
	// After selects keys that sort after it; empty starts at the first key.
	After string
	// Limit is the greatest number of locks to return, at least 1.
	Limit int
}

// WaitQuery selects waiters.
type WaitQuery struct {
	// Namespace is another namespace than the store's own: see [Elsewhere]. Empty: its own.
	Namespace string
	// Key selects the queue of one key; empty selects all queues.
	Key string
	// Prefix selects keys that begin with it.
	Prefix string
	// After selects waiters after this one; zero starts at the first waiter.
	After QueuePlace
	// Limit is the greatest number of waiters to return, at least 1.
	Limit int
}

// QueuePlace identifies a waiter in a queue. It does not change when other waiters leave, unlike Waiting.Position.
type QueuePlace struct {
	Key string
	// Order grows from the head of the queue to its end.
	Order int64
}

// Waiting is a waiter whose lease lives.
type Waiting struct {
	QueuePlace
	// Position in the key's queue; the first is 1.
	Position            int
	Pod, Session, Owner string
	Shared              bool
	Limit               int
	// WaitingFor is how long the waiter has been in the queue.
	WaitingFor  time.Duration
	Traceparent string
}
