package store

import "time"

// Lock is what is known of a key.
type Lock struct {
	Key string
	// Held: a living lease holds it, or a hold keeps it. The rest of the holder is only set then.
	Held bool
	// Shared: shared holders have it. Token, Holder and Stopping are those of the one that was granted
	// first.
	Shared bool
	// Expired: the key is not held, and the lease of the grant under Token ended before a release.
	// Zero Token: none is remembered.
	Expired     bool
	Token       int64
	Holder      Holder
	QueueLength int
	// Stopping is set when the holder was asked to stop.
	Stopping *Stopping
	// Limit is the one that all shared holders and shared waiters name; zero: none. It is also set if an
	// exclusive holder keeps the shared waiters waiting.
	Limit int
	// HoldersCount is how many shared holders there are, and Holders are the first of them, at most
	// [HoldersShown], in the order of their tokens.
	HoldersCount int
	Holders      []Share
	// NextEnd is the smallest ExpiresIn of all shared holders.
	NextEnd time.Duration
}

// HoldersShown is the most shared holders that a Lock shows, and BlockersShown those of an Answer.
const (
	HoldersShown  = 100
	BlockersShown = 8
)

// Share is one holder of a shared lock.
type Share struct {
	Token int64
	// Slot is the smallest number from 0 on that no other holder had when it was granted, if there is a
	// Limit. Else it is zero.
	Slot int
	// Stopping is set when this holder was asked to stop.
	Stopping *Stopping
	Holder
}

// Holder is who has a lock.
type Holder struct {
	Instance, Pod string
	// Session is its public name, empty for bind:ttl.
	Session, Owner string
	// Lease holds the lock; Renewed is false for bind:ttl.
	Lease   LeaseID
	Renewed bool
	// HoldPending: it was released, or its lease has ended, and its MinHold keeps the key.
	// ExpiresIn is then until the end of the hold.
	HoldPending bool
	AcquiredAt  time.Time
	HeldFor     time.Duration
	// ExpiresIn is how long the key is kept if nobody renews or releases anything.
	ExpiresIn   time.Duration
	Data        []byte
	Traceparent string
}

// Query selects held locks.
type Query struct {
	// Instance limits to locks granted by that instance, shared ones to those with a holder of it;
	// empty: all.
	Instance string
	// Prefix limits to keys that begin with it.
	Prefix string
	// After limits to keys behind this one; empty: from the start.
	After string
	// Limit is the most locks to return, at least 1.
	Limit int
}

// WaitQuery selects waiters.
type WaitQuery struct {
	// Key limits to the queue of one key; empty: all.
	Key string
	// Prefix limits to keys that begin with it.
	Prefix string
	// After limits to waiters behind this one; zero: from the start.
	After QueuePlace
	// Limit is the most waiters to return, at least 1.
	Limit int
}

// QueuePlace is where a waiter stands. Unlike its position, it stays while others leave the queue.
type QueuePlace struct {
	Key string
	// Order grows along the queue.
	Order int64
}

// Waiting is a waiter whose lease lives.
type Waiting struct {
	QueuePlace
	// Position is 1 for the first of the key.
	Position            int
	Pod, Session, Owner string
	Shared              bool
	Limit               int
	// WaitingFor is how long it has been in the queue.
	WaitingFor  time.Duration
	Traceparent string
}
