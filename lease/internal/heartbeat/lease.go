package heartbeat

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// Lease lives until its deadline, which every confirmed renewal moves. A lost lease is never revived.
type Lease struct {
	id  store.LeaseID
	ttl time.Duration

	// opened is closed when the store has answered. err is set before.
	opened chan struct{}
	err    error

	// term is replaced by each confirmed renewal. It is nil until the lease is open: see trust.go.
	term atomic.Pointer[term]
	// lost is why the lease was lost; nil: it was not.
	lost atomic.Pointer[types.LostReason]
	// users counts the locks, waits and watches under the lease. It rises from zero only under the
	// mutex of Leases, so that a lease without users can be closed.
	users atomic.Int64
	// used: the lease had users since it was last due.
	used atomic.Bool

	// For renewals; the mutex of Leases guards both.
	renewAt  time.Time
	renewing bool
	// unconfirmed is set when a renewal is planned, until the store confirms it. A lease that ends meanwhile is lost because the store did not
	// answer: see LossReason.
	unconfirmed atomic.Bool
	// next is the lease to which the locks and waits of this one are being moved.
	next atomic.Pointer[Lease]

	// Verified belongs to [Users].Verify: the last history in which it verified the lease.
	Verified store.History
}

func newLease(ttl time.Duration) *Lease {
	return &Lease{id: uuid.New(), ttl: ttl, opened: make(chan struct{})}
}

// wasUsed reports whether the lease had users since the last call.
func (l *Lease) wasUsed() bool { return l.used.Swap(false) }

// ID is the id of the lease in the store.
func (l *Lease) ID() store.LeaseID { return l.id }

// TTL may be longer than the requested one.
func (l *Lease) TTL() time.Duration { return l.ttl }

// Opened is closed when the store has answered, or will not answer. After that, Err is valid.
func (l *Lease) Opened() <-chan struct{} { return l.opened }

// Err is the error of the opening, once Opened is closed.
func (l *Lease) Err() error { return l.err }

// Lost reports whether the lease was lost. Alive becomes false some time earlier.
func (l *Lease) Lost() bool { return l.lost.Load() != nil }

// Pin adds one user. The caller must already be a user.
func (l *Lease) Pin() { l.users.Add(1) }

// Unpin removes one user.
func (l *Lease) Unpin() { l.users.Add(-1) }

// Users counts the locks, waits and watches under the lease.
func (l *Lease) Users() int64 { return l.users.Load() }

// lose records the first loss, and reports whether this is it.
func (l *Lease) lose(reason types.LostReason) bool { return l.lost.CompareAndSwap(nil, &reason) }

// LossReason is why the lease was lost, or why it is not trusted any more: it was not renewed before its deadline, or it needs another lease (MoveTo), to which
// that has happened.
func (l *Lease) LossReason() types.LostReason {
	if lost := l.lost.Load(); lost != nil {
		return *lost
	}
	if l.unconfirmed.Load() {
		return types.LostStore
	}
	if next := l.next.Load(); next != nil {
		return next.LossReason()
	}
	return types.LostExpired
}

// MoveTo records that the store may have this lease's locks and waits under next, until Moved. Until then,
// this lease is trusted only while both are.
func (l *Lease) MoveTo(next *Lease) { l.next.Store(next) }

// Moved records that the place of each lock and wait is known again.
func (l *Lease) Moved() { l.next.Store(nil) }

// Covers reports whether the store may have a lock of this lease under the lease with this id, because a
// move is in progress.
func (l *Lease) Covers(id store.LeaseID) bool {
	if l.id == id {
		return true
	}
	next := l.next.Load()
	return next != nil && next.Covers(id)
}

// ttlSteps are the TTLs of leases, in addition to the configured one. Each is at most twice the previous
// one. Locks with any TTL between two steps share a lease, because each lease in use costs renewals.
var ttlSteps = [...]time.Duration{
	500 * time.Millisecond, time.Second, 2 * time.Second, 3 * time.Second, 5 * time.Second, 10 * time.Second,
	15 * time.Second, 30 * time.Second, time.Minute, 2 * time.Minute, 3 * time.Minute, 5 * time.Minute,
	10 * time.Minute, 15 * time.Minute, 30 * time.Minute, time.Hour, 2 * time.Hour, 3 * time.Hour, 6 * time.Hour,
	12 * time.Hour, 24 * time.Hour,
}

// interval is how often a lease of that TTL is renewed.
func interval(ttl, configured time.Duration) time.Duration { return min(configured, ttl/3) }

// stepOf returns the TTL of the lease for locks with this TTL: the next step, or the configured TTL if that
// is smaller.
func stepOf(ttl, configured time.Duration) time.Duration {
	if ttl == configured {
		return ttl
	}
	i, _ := slices.BinarySearch(ttlSteps[:], ttl)
	switch {
	case i == len(ttlSteps):
		return ttl
	case ttl < configured:
		return min(ttlSteps[i], configured)
	default:
		return ttlSteps[i]
	}
}
