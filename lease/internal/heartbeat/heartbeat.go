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
	"maps"
	"slices"
	"sync"
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

// set contains the leases in use: one for each step of the TTLs, and the retired ones.
type set struct {
	usual time.Duration // the configured TTL
	// listen says to the store whether there is a lease. The store's news (hand-offs, signals, events)
	// concern waits, locks and watches, which all need a lease.
	listen    func(on bool)
	listening bool
	emptied   time.Time // when the last lease was removed

	mu      sync.RWMutex
	byTTL   map[time.Duration]*Lease
	retired map[*Lease]struct{}
	// toRevoke are leases whose revocation the store has not confirmed.
	toRevoke map[*Lease]struct{}
	// nextAt is the time of the renewer's next tick.
	nextAt time.Time
	// wake has an element if the set of leases has changed.
	wake chan struct{}
}

func newSet(usual time.Duration, listen func(on bool)) *set {
	return &set{
		usual: usual, listen: listen,
		byTTL: make(map[time.Duration]*Lease), retired: make(map[*Lease]struct{}),
		toRevoke: make(map[*Lease]struct{}), wake: make(chan struct{}, 1),
	}
}

// pin returns the lease for a TTL, with one more user, and whether the caller must open it.
func (s *set) pin(ttl time.Duration) (l *Lease, open bool) {
	ttl = stepOf(ttl, s.usual)
	s.mu.RLock()
	if l = s.byTTL[ttl]; l != nil {
		l.users.Add(1)
	}
	s.mu.RUnlock()
	if l == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		if l = s.byTTL[ttl]; l == nil {
			l = newLease(ttl)
			s.listenLocked()
			s.byTTL[ttl] = l
			open = true
		}
		l.users.Add(1)
	}
	if !l.used.Load() {
		l.used.Store(true)
	}
	return l, open
}

func (s *set) get(ttl time.Duration) *Lease {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.byTTL[stepOf(ttl, s.usual)]
}

// remove removes a lease, so that the next pin makes a fresh one.
func (s *set) remove(l *Lease) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.removeLocked(l)
}

func (s *set) removeLocked(l *Lease) {
	if _, ok := s.retired[l]; ok {
		delete(s.retired, l)
	} else if s.byTTL[l.ttl] == l {
		delete(s.byTTL, l.ttl)
	} else {
		return
	}
	if s.emptyLocked() {
		s.emptied = time.Time{} // the renewer sets the time
		s.changed()
	}
}

// Linger is how long the store continues to listen without a lease. Listening again costs a new connection,
// and leases of short locks come and go.
const Linger = 30 * time.Second

// listenLocked is called before a lease is added. The caller holds s.mu.
func (s *set) listenLocked() {
	if !s.listening {
		s.listening = true
		s.listen(true)
	}
}

// lingerLocked ends the listening if there has been no lease for [Linger]. It returns the time until its
// next call. The caller holds s.mu.
func (s *set) lingerLocked(now time.Time) time.Duration {
	if !s.listening || !s.emptyLocked() {
		return time.Hour
	}
	if s.emptied.IsZero() {
		s.emptied = now
	}
	left := Linger - now.Sub(s.emptied)
	if left <= 0 {
		s.listening = false
		s.listen(false)
		return time.Hour
	}
	return left
}

func (s *set) emptyLocked() bool { return len(s.byTTL)+len(s.retired) == 0 }

// retire makes the next pin open a fresh lease. It returns false if the lease is already retired or removed.
func (s *set) retire(l *Lease) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byTTL[l.ttl] != l {
		return false
	}
	delete(s.byTTL, l.ttl)
	s.retired[l] = struct{}{}
	return true
}

func (s *set) isRetired(l *Lease) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.isRetiredLocked(l)
}

func (s *set) isRetiredLocked(l *Lease) bool {
	_, ok := s.retired[l]
	return ok
}

func (s *set) all() []*Lease {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.allLocked()
}

func (s *set) allLocked() []*Lease {
	return slices.AppendSeq(slices.Collect(maps.Values(s.byTTL)), maps.Keys(s.retired))
}

func (s *set) mustRevoke(l *Lease) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.toRevoke[l] = struct{}{}
}

func (s *set) revoked(leases ...*Lease) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range leases {
		delete(s.toRevoke, l)
	}
}

func (s *set) unrevoked() []*Lease {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return slices.Collect(maps.Keys(s.toRevoke))
}

// opened wakes the renewer if the lease is due before the next tick.
func (s *set) opened(l *Lease) {
	s.mu.RLock()
	sooner := l.renewAt.Before(s.nextAt)
	s.mu.RUnlock()
	if sooner {
		s.changed()
	}
}

func (s *set) changed() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// renewAgain sets when a lease is renewed next. The lease has no renewal in flight.
func (s *set) renewAgain(l *Lease, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l.renewing, l.renewAt = false, at
}
