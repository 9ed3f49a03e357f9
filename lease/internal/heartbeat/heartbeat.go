// Package heartbeat keeps the leases of this sidecar. All locks of sessions, waits and watches are held under a few
// leases, one for each step of the TTLs in use. So one statement over a few rows renews 100,000 locks.
//
// A lease is opened when it is first pinned, renewed while it has users, and closed without them. Its
// deadline counts from when the last confirmed renewal was sent. After its deadline the lease is lost: its
// users are notified, and it is revoked as soon as the store answers. If the store loses it earlier, its users are
// notified at once.
//
// If the store reports that a lease is of another history (see [store.Mover]), the sidecar verifies its
// locks before it trusts the lease for longer. The lease is retired: it gets no new locks.
//
// docs/how-it-works.md draws the states of a lease, and names the function of each step.
package heartbeat

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/background"
	"github.com/locksidecar/locksidecar/lease/internal/beat"
	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/lease/internal/lanes"
	"github.com/locksidecar/locksidecar/lease/internal/observe"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// Store is the part of a [store.Store] that leases need.
type Store interface {
	Renew(ctx context.Context, leases []store.LeaseID) (store.Renewal, error)
	Revoke(ctx context.Context, leases []store.LeaseID) error
	ReapInstance(ctx context.Context, instance string) error
	Ready() error
}

// Config is the configuration of leases. All fields but Beat are required.
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
	// Beat is that of the process, or nil.
	Beat *beat.Beat

	Users Users
}

// Users are the rooms with locks, waits and watches under leases. Only Verify may block.
type Users interface {
	// LeaseLost ends the use of a lost lease, before the lease is revoked. It returns the number of locks and waits under it.
	LeaseLost(l *Lease, reason types.LostReason) (locks, waits int)
	// LeaseRetired moves the locks and waits under a retired lease.
	LeaseRetired(l *Lease)
	// SignalsWait is called when there are signals for holders.
	SignalsWait()
	// Verify asks the store which locks are still held under leases of another history, and loses the others.
	// It calls trusted, in the caller's goroutine, for each lease whose locks are all verified.
	Verify(ctx context.Context, leases []*Lease, history store.History, trusted func(*Lease)) error
}

// Leases contains the leases of a sidecar.
type Leases struct {
	cfg Config
	ctx context.Context // after its end, leases are not opened, renewed or revoked again

	// mu guards the following fields.
	mu sync.RWMutex
	// byTTL are the leases in use, one for each step of the TTLs, without the retired ones.
	byTTL   map[time.Duration]*Lease
	retired map[*Lease]struct{}
	// toRevoke are leases whose revocation the store has not confirmed.
	toRevoke map[*Lease]struct{}
	// nextAt is the time of the renewer's next step.
	nextAt time.Time
	// wake has an element if the set of leases has changed.
	wake chan struct{}

	// others are the managers that renew at the same time. It is of Run. joins is the longest interval of their leases that are due; 0: none.
	others *beat.Member
	joins  atomic.Int64

	reaping       atomic.Bool  // the leases of predecessors are not all revoked yet
	leftUnrevoked atomic.Int64 // failed revocations that are not repeated, including those of predecessors
}

// New makes an empty set of leases, which works until ctx ends.
func New(ctx context.Context, cfg Config) *Leases {
	return &Leases{
		cfg: cfg, ctx: ctx,
		byTTL: make(map[time.Duration]*Lease), retired: make(map[*Lease]struct{}),
		toRevoke: make(map[*Lease]struct{}), wake: make(chan struct{}, 1),
	}
}

// InUse returns the ids of the open leases that have users, and of those that were lost before their deadline: the store may
// still have locks under these.
func (ls *Leases) InUse() (ids []store.LeaseID) {
	for _, l := range ls.All() {
		if l.users.Load() > 0 && l.isOpen() {
			ids = append(ids, l.id)
		}
	}
	return append(ids, idsOf(ls.lostEarly())...)
}

// LostEarly reports whether a lease was lost early.
func (ls *Leases) LostEarly() bool { return len(ls.lostEarly()) > 0 }

func (ls *Leases) lostEarly() []*Lease {
	now := ls.cfg.Clock.Now()
	return slices.DeleteFunc(ls.unrevoked(), func(l *Lease) bool { return !l.LostEarly(now) })
}

// Left returns the number of living leases, the shortest remaining time of trust, and the smallest such
// time as a share of the TTL.
func (ls *Leases) Left(t clock.Tick) (living int, expiry time.Duration, share float64) {
	for _, l := range ls.All() {
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

// Pin returns the lease for a TTL, with one more user. A new lease is opened in the background, in the
// trace of the call.
func (ls *Leases) Pin(call context.Context, ttl time.Duration) *Lease {
	l, isNew := ls.pin(ttl)
	if isNew && !ls.cfg.Background.Spawn(func() { ls.open(call, l) }) {
		ls.remove(l)
		l.err = types.ErrDraining
		close(l.opened)
	}
	return l
}

// pin returns the lease for a TTL, with one more user, and whether the caller must open it.
func (ls *Leases) pin(ttl time.Duration) (l *Lease, open bool) {
	ttl = stepOf(ttl, ls.cfg.TTL)
	ls.mu.RLock()
	if l = ls.byTTL[ttl]; l != nil {
		l.users.Add(1)
	}
	ls.mu.RUnlock()
	if l == nil {
		ls.mu.Lock()
		defer ls.mu.Unlock()
		if l = ls.byTTL[ttl]; l == nil {
			l = newLease(ttl)
			ls.byTTL[ttl] = l
			open = true
		}
		l.users.Add(1)
	}
	if !l.used.Load() {
		l.used.Store(true)
	}
	return l, open
}

// Get returns the lease for a TTL, or nil.
func (ls *Leases) Get(ttl time.Duration) *Lease {
	ls.mu.RLock()
	defer ls.mu.RUnlock()
	return ls.byTTL[stepOf(ttl, ls.cfg.TTL)]
}

// open opens a lease in the store, even if the call that needed it first has left.
func (ls *Leases) open(call context.Context, l *Lease) {
	silence := fmt.Errorf("%w: %w", types.NoAnswer(ls.cfg.StoreTimeout), context.DeadlineExceeded)
	ctx, cancel := context.WithTimeoutCause(ls.cfg.Observer.Along(ls.ctx, call), ls.cfg.StoreTimeout, silence)
	defer cancel()
	sent := ls.cfg.Clock.Now()
	suspended := ls.cfg.Clock.Suspended(sent)
	// The first renewal is set before the answer, because the lease may be renewed as soon as it is confirmed. Until then it has no
	// term, and plan skips it.
	ls.renewAgain(l, sent.Add(time.Duration(float64(interval(l.ttl, ls.cfg.RenewInterval))*clock.Jitter())))
	_, err := lanes.SubmitOwn(ctx, ls.cfg.Lanes.Openings, "open lease", store.NewLease{ID: l.id, TTL: l.ttl})
	tooLate := err == nil && !l.confirm(ls.cfg.Clock, sent, suspended)
	if tooLate {
		err = &store.Error{Op: "open lease", Err: context.DeadlineExceeded}
	}
	if err != nil {
		ls.remove(l)
		l.err = err
		close(l.opened)
		if tooLate || store.OutcomeUnknown(err) {
			ls.revoke(l)
		}
		return
	}
	close(l.opened)
	ls.wakeIfSooner(l)
}

// wakeIfSooner wakes the renewer if the lease is due before the next step.
func (ls *Leases) wakeIfSooner(l *Lease) {
	ls.mu.RLock()
	sooner := l.renewAt.Before(ls.nextAt)
	ls.mu.RUnlock()
	if sooner {
		ls.changed()
	}
}

// Lose tells how an own lease is lost: past its deadline, or because the store says so before.
func (ls *Leases) Lose(l *Lease, reason types.LostReason) {
	// From now on no read trusts it. Only the first loss counts.
	if !l.lose(reason) {
		return
	}
	// The next call makes a fresh lease. A lease whose locks are being moved to this one (Lease.next) is not trusted now, either, so the renewer looks again.
	ls.remove(l)
	ls.changed()
	// Its users are told: locks are lost, and waits begin again.
	locks, waits := ls.cfg.Users.LeaseLost(l, reason)
	ls.cfg.Log.Error("lease lost", "lease", l.id, "ttl", l.ttl.String(), "reason", string(reason), "locks", locks, "waits", waits)
	// It is revoked at its deadline, or as soon as the store answers after that. Until then apps may believe in its locks, and of a
	// store with several servers, only one may have lost the lease.
	ls.mustRevoke(l)
	left := l.Deadline().Sub(ls.cfg.Clock.Now())
	if left <= 0 || !ls.cfg.Background.After(left, func() { ls.sendRevocation(l) }) {
		ls.sendRevocation(l)
	}
}

// LoseOverdue loses a lease that was found past its deadline.
func (ls *Leases) LoseOverdue(l *Lease) { ls.Lose(l, l.LossReason()) }

// LoseUnknown loses a lease that the store does not know. Before its deadline the store has lost it: it forgot it in a failover, or somebody deleted it.
// After its deadline the lease is over by this sidecar's own clock, too.
func (ls *Leases) LoseUnknown(l *Lease) {
	reason := types.LostExpired
	if l.inTerm(clock.Read(ls.cfg.Clock)) {
		reason = types.LostStore
	}
	ls.Lose(l, reason)
}

// remove removes a lease, so that the next pin makes a fresh one.
func (ls *Leases) remove(l *Lease) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.removeLocked(l)
}

func (ls *Leases) removeLocked(l *Lease) {
	if _, ok := ls.retired[l]; ok {
		delete(ls.retired, l)
	} else if ls.byTTL[l.ttl] == l {
		delete(ls.byTTL, l.ttl)
	}
}

// retire makes the next pin open a fresh lease. It returns false if the lease is already retired or removed.
func (ls *Leases) retire(l *Lease) bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if ls.byTTL[l.ttl] != l {
		return false
	}
	delete(ls.byTTL, l.ttl)
	ls.retired[l] = struct{}{}
	return true
}

// Retired reports whether a lease is retired and neither closed nor lost.
func (ls *Leases) Retired(l *Lease) bool {
	ls.mu.RLock()
	defer ls.mu.RUnlock()
	return ls.isRetiredLocked(l)
}

func (ls *Leases) isRetiredLocked(l *Lease) bool {
	_, ok := ls.retired[l]
	return ok
}

// All returns the leases that are not lost, including those that are being opened.
func (ls *Leases) All() []*Lease {
	ls.mu.RLock()
	defer ls.mu.RUnlock()
	return ls.allLocked()
}

func (ls *Leases) allLocked() []*Lease {
	return slices.AppendSeq(slices.Collect(maps.Values(ls.byTTL)), maps.Keys(ls.retired))
}

func (ls *Leases) mustRevoke(l *Lease) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.toRevoke[l] = struct{}{}
}

func (ls *Leases) revoked(leases ...*Lease) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, l := range leases {
		delete(ls.toRevoke, l)
	}
}

func (ls *Leases) unrevoked() []*Lease {
	ls.mu.RLock()
	defer ls.mu.RUnlock()
	return slices.Collect(maps.Keys(ls.toRevoke))
}

func (ls *Leases) changed() { clock.Wake(ls.wake) }

// renewAgain sets when a lease is renewed next. The lease has no renewal in flight.
func (ls *Leases) renewAgain(l *Lease, at time.Time) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	l.renewing, l.renewAt = false, at
}
