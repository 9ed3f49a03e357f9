// Package heartbeat keeps the leases of this sidecar. All locks of sessions, waits and watches are held under a few
// leases, one for each step of the TTLs in use. So one statement over a few rows renews 100,000 locks.
//
// A lease is opened when it is first pinned, renewed while it has users, and closed without them. Its
// deadline counts from when the last confirmed renewal was sent. After its deadline the lease is lost: its
// users are notified, and it is revoked as soon as the store answers.
//
// If the store reports that a lease is of another history (see [store.Mover]), the sidecar verifies its
// locks before it trusts the lease for longer. The lease is retired: it gets no new locks.
package heartbeat

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/background"
	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/lease/internal/lanes"
	"github.com/locksidecar/locksidecar/lease/internal/observe"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// Store is the part of a [store.Store] that leases need. It may also be a [store.Reaper] and a [store.Listener].
type Store interface {
	Renew(ctx context.Context, leases []store.LeaseID) (store.Renewal, error)
	Revoke(ctx context.Context, leases []store.LeaseID) error
	Ready() error
}

// Config is the configuration of leases. All fields are required.
type Config struct {
	// TTL is the default of a lock. RenewInterval is the longest time between two renewals of a lease.
	// StoreTimeout limits one operation of the store.
	TTL, RenewInterval, StoreTimeout time.Duration

	Store      Store
	Lanes      *lanes.Set
	Clock      clock.Clock
	Log        *slog.Logger
	Observer   *observe.Observer
	Background *background.Runner

	// OnLost is called with a lost lease and the reason, before the lease is revoked. It returns the number
	// of locks and waits under it.
	OnLost func(l *Lease, reason types.LostReason) (locks, waits int)
	// OnSignals is called when there are signals for holders.
	OnSignals func()
	// OnRetired is called with a retired lease. Its locks and waits must be moved.
	OnRetired func(*Lease)
	// Verify asks the store which locks are still held under leases of another history, and loses the others.
	// It calls trusted for each lease whose locks are all verified.
	Verify func(ctx context.Context, leases []*Lease, history store.History, trusted func(*Lease)) error
}

// Leases contains the leases of a sidecar.
type Leases struct {
	cfg Config
	ctx context.Context // after its end, leases are not opened, renewed or revoked again
	set *set

	reaping       atomic.Bool  // the leases of predecessors are not all revoked yet
	leftUnrevoked atomic.Int64 // failed revocations that are not repeated, including those of predecessors
}

// New makes an empty set of leases, which works until ctx ends.
func New(ctx context.Context, cfg Config) *Leases {
	listen := func(bool) {}
	if l, ok := cfg.Store.(store.Listener); ok {
		listen = l.Listen
	}
	return &Leases{cfg: cfg, ctx: ctx, set: newSet(cfg.TTL, listen)}
}

// Pin returns the lease for a TTL, with one more user. A new lease is opened in the background, in the
// trace of the call.
func (ls *Leases) Pin(call context.Context, ttl time.Duration) *Lease {
	l, isNew := ls.set.pin(ttl)
	if isNew && !ls.cfg.Background.Spawn(func() { ls.open(call, l) }) {
		ls.set.remove(l)
		l.err = types.ErrDraining
		close(l.opened)
	}
	return l
}

// Get returns the lease for a TTL, or nil.
func (ls *Leases) Get(ttl time.Duration) *Lease { return ls.set.get(ttl) }

// All returns the leases that are not lost, including those that are being opened.
func (ls *Leases) All() []*Lease { return ls.set.all() }

// InUse returns the ids of the open leases that have users.
func (ls *Leases) InUse() (ids []store.LeaseID) {
	for _, l := range ls.set.all() {
		if l.users.Load() > 0 && l.life.Load() != nil {
			ids = append(ids, l.id)
		}
	}
	return ids
}

// Retired reports whether a lease is retired and neither closed nor lost.
func (ls *Leases) Retired(l *Lease) bool { return ls.set.isRetired(l) }

// Left returns the number of living leases, the shortest remaining time of trust, and the smallest such
// time as a share of the TTL.
func (ls *Leases) Left(t clock.Tick) (living int, expiry time.Duration, share float64) {
	for _, l := range ls.set.all() {
		if !l.Alive(t) {
			continue
		}
		left := l.Remaining(t)
		part := float64(left) / float64(l.ttl)
		if living == 0 || left < expiry {
			expiry = left
		}
		if living == 0 || part < share {
			share = part
		}
		living++
	}
	return living, expiry, share
}

// open opens a lease in the store, even if the call that needed it first has left.
func (ls *Leases) open(call context.Context, l *Lease) {
	ctx, cancel := context.WithTimeout(ls.cfg.Observer.Along(ls.ctx, call), ls.cfg.StoreTimeout)
	defer cancel()
	sent := ls.cfg.Clock.Now()
	suspended := ls.cfg.Clock.Suspended(sent)
	// The lease may be renewed as soon as it is confirmed.
	ls.set.renewAgain(l, sent.Add(time.Duration(float64(interval(l.ttl, ls.cfg.RenewInterval))*clock.Jitter())))
	_, err := lanes.Submit(ctx, ls.cfg.Lanes.Openings, store.NewLease{ID: l.id, TTL: l.ttl})
	if ctx.Err() != nil && err != nil { // the batch continues, so the lease may still be opened
		err = &store.Error{Op: "open lease", Err: err, Unknown: true}
	}
	tooLate := err == nil && !l.confirm(ls.cfg.Clock, sent, suspended)
	if tooLate {
		err = &store.Error{Op: "open lease", Err: context.DeadlineExceeded}
	}
	if err != nil {
		ls.set.remove(l)
		l.err = err
		close(l.opened)
		if tooLate || store.OutcomeUnknown(err) {
			ls.revoke(l)
		}
		return
	}
	close(l.opened)
	ls.set.opened(l)
}

// Lose declares an own lease lost, with its locks and waits. The lease is revoked as soon as the store answers.
func (ls *Leases) Lose(l *Lease, reason types.LostReason) {
	if !l.lost.CompareAndSwap(false, true) {
		return
	}
	ls.set.remove(l)
	ls.set.changed() // locks that are being moved to it are not trusted either
	locks, waits := ls.cfg.OnLost(l, reason)
	ls.cfg.Log.Error("lease lost", "lease", l.id, "ttl", l.ttl.String(), "reason", string(reason), "locks", locks, "waits", waits)
	ls.revoke(l)
}

// Expire loses a lease that was found past its deadline.
func (ls *Leases) Expire(l *Lease) { ls.Lose(l, l.LossReason()) }
