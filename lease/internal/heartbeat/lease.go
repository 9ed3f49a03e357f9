package heartbeat

import (
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// Lease lives until its deadline, which every confirmed renewal moves. Once lost it is never revived.
type Lease struct {
	id  store.LeaseID
	ttl time.Duration

	// opened is closed when the store has answered; err is set before.
	opened chan struct{}
	err    error

	// life is replaced by each confirmed renewal. nil until opened.
	life atomic.Pointer[life]
	lost atomic.Bool
	// users counts what is held under it. It rises from zero only under the set's mutex, so that a
	// lease without users can be closed.
	users atomic.Int64
	// used: something was held under it since it was last due.
	used atomic.Bool

	// For renewals, under the set's mutex.
	renewAt  time.Time
	renewing bool
	// failing: the last renewal was not confirmed by the store, or not yet.
	failing atomic.Bool
	// next is the lease to which what is held under this one is being moved.
	next atomic.Pointer[Lease]

	// Verified belongs to [Config].Verify: the history in which it has verified the lease.
	Verified store.History
}

type life struct {
	deadline  time.Time
	suspended time.Duration
}

func newLease(ttl time.Duration) *Lease {
	return &Lease{id: uuid.New(), ttl: ttl, opened: make(chan struct{})}
}

// ID names the lease in the store.
func (l *Lease) ID() store.LeaseID { return l.id }

// TTL may be longer than what was asked for.
func (l *Lease) TTL() time.Duration { return l.ttl }

// Opened is closed when the store has answered, or will not. Then Err is valid.
func (l *Lease) Opened() <-chan struct{} { return l.opened }

// Err is why the lease could not be opened, once Opened is closed.
func (l *Lease) Err() error { return l.err }

// Alive reports whether the lease can be trusted now. Every read asks, because a timer may come late.
func (l *Lease) Alive(t clock.Tick) bool {
	if l.lost.Load() {
		return false
	}
	life := l.life.Load()
	if life == nil || !t.Now.Before(life.deadline) || t.Suspended()-life.suspended >= clock.SuspensionLimit {
		return false
	}
	next := l.next.Load() // the store may have the lock under that one already
	return next == nil || next.Alive(t)
}

// Lost reports whether the lease was lost. Alive is false some time before.
func (l *Lease) Lost() bool { return l.lost.Load() }

// Remaining is how long the lease can be trusted if it is not renewed any more.
func (l *Lease) Remaining(t clock.Tick) time.Duration {
	if !l.Alive(t) {
		return 0
	}
	left := max(l.life.Load().deadline.Sub(t.Now), 0)
	if next := l.next.Load(); next != nil {
		left = min(left, next.Remaining(t))
	}
	return left
}

// Pin makes the lease have one user more. The caller is one already.
func (l *Lease) Pin() { l.users.Add(1) }

// Unpin ends what a pin began.
func (l *Lease) Unpin() { l.users.Add(-1) }

// Users counts what is held under the lease.
func (l *Lease) Users() int64 { return l.users.Load() }

// LossReason is why a lease that is past its deadline was not renewed.
func (l *Lease) LossReason() types.LostReason {
	if l.failing.Load() {
		return types.LostStore
	}
	return types.LostExpired
}

// MoveTo says that the store may have this lease's locks and waits under another one, until Moved.
// It is trusted only while both are.
func (l *Lease) MoveTo(next *Lease) { l.next.Store(next) }

// Moved says that it is known under which lease everything is.
func (l *Lease) Moved() { l.next.Store(nil) }

// Covers reports whether the store may have under id what is held under l here, because it may have
// been moved.
func (l *Lease) Covers(id store.LeaseID) bool {
	if l.id == id {
		return true
	}
	next := l.next.Load()
	return next != nil && next.Covers(id)
}

// confirm notes that a renewal (or the opening) that was sent at that time was confirmed. It
// reports false when the lease had passed its deadline before.
func (l *Lease) confirm(clk clock.Clock, sent time.Time, suspendedThen time.Duration) bool {
	if l.life.Load() != nil && !l.Alive(clock.Read(clk)) {
		return false
	}
	l.life.Store(&life{deadline: sent.Add(l.ttl - Margin(l.ttl)), suspended: suspendedThen})
	return l.Alive(clock.Read(clk))
}
