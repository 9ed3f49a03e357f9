package store

import "time"

// Lock is what is known of a key.
type Lock struct {
	Key string
	// Held: a living lease holds it, or a hold keeps it. The rest of the holder is only set then.
	Held        bool
	Token       int64
	Holder      Holder
	QueueLength int
	// Stopping is set when the holder was asked to stop.
	Stopping *Stopping
	// Expired: the key is not held, and the lease of the grant under Token ended before a release.
	// Zero Token: none is remembered.
	Expired bool
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
	// Instance limits to locks granted by that instance; empty: all.
	Instance string
	// Prefix limits to keys that begin with it.
	Prefix string
	// After limits to keys behind this one; empty: from the start.
	After string
	// Limit is the most locks to return, at least 1.
	Limit int
}
