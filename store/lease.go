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
	// Reconcile are the Kept leases that were opened in another history: grants under them may be
	// missing, and released ones be back. See [Mover].
	Reconcile []LeaseID
}

// History names all that a store has granted since it last may have forgotten something, as by a
// failover to a server that knew less.
type History = uuid.UUID

// HeldGrants are what HeldUnder found, and in which history.
type HeldGrants struct {
	Grants  []HeldGrant
	History History
}

// HeldGrant is a grant that is held under a lease.
type HeldGrant struct {
	Key   string
	Token int64
	Lease LeaseID
}

// Move names what is to be moved: a lock by its token, or by its id an attempt that waits or has
// got its lock meanwhile.
type Move struct {
	Attempt
	Token int64
}
