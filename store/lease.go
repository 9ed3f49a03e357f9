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

// Renewal is the result of a Renew.
type Renewal struct {
	// Renewed are the leases that were extended.
	Renewed []LeaseID
	// Signals: there are signals for holders under these leases.
	Signals bool
	// History is the history in which the leases were extended, if the engine can have several.
	History History
	// Reconcile are those of Renewed that were opened in another history. Grants under them may be missing,
	// and released locks may be held again. See [Mover].
	Reconcile []LeaseID
}

// History names a period in which a store forgot nothing. A failover to a server with older data begins a new one.
type History = uuid.UUID

// HeldGrants is the result of HeldUnder, and its history.
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

// Move names what to move: a lock by its token, or an attempt by its id. The attempt may wait, or may have
// got its lock meanwhile.
type Move struct {
	Attempt
	Token int64
}
