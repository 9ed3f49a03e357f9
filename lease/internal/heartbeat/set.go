package heartbeat

import (
	"maps"
	"slices"
	"sync"
	"time"
)

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
