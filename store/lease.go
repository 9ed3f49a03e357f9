package store

import (
	"time"

	"github.com/google/uuid"
)

// NewLease is a renewed lease to be made.
type NewLease struct {
	ID  LeaseID
	TTL time.Duration
}

// Renewal is what a Renew found.
type Renewal struct {
	// Kept are the leases that were extended.
	Kept []LeaseID
	// Signals: there are signals for holders under these leases.
	Signals bool
	// History is in which history they were extended, where there can be more than one.
	History History
	// Reconcile are those of the Kept that are of another history: what the store has
	// forgotten since, only HeldUnder tells, and what it remembers again, only HeldUnderAfter.
	// They are named each time, until they are Reconciled.
	Reconcile []LeaseID
}

// History names all that a store has granted since it last may have forgotten something
// that it had told: since a failover to a server that knew less.
type History = uuid.UUID

// Count is what HeldUnder found, and in which history.
type Count struct {
	Grants  []HeldGrant
	History History
}

// Part is what HeldUnderAfter found in a part of the locks.
type Part struct {
	Count
	// Next is behind which key the next part begins; it is After itself where nothing was
	// looked at. Last: there is no next part.
	Next string
	Last bool
}

// HeldGrant is a grant that is held under a renewed lease, or, if it Waits, a place in line.
type HeldGrant struct {
	Attempt
	Lease   LeaseID
	Token   int64 // of a grant
	Waiting bool
}
