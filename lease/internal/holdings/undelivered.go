package holdings

import (
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/lease/internal/heartbeat"
	"github.com/locksidecar/locksidecar/lease/internal/observe"
	"github.com/locksidecar/locksidecar/lease/internal/types"
)

// Won is a lock that was granted to a request of the session.
type Won struct {
	Req        *types.Request
	Token      int64
	Slot       int // of a share
	Lease      *heartbeat.Lease
	AcquiredAt time.Time
	// Until is the end of its MaxHold, zero for none.
	Until time.Time
	Span  *observe.Hold
	// Member is what the lock knows of its cohort, or nil.
	Member Member
}

// Add adds a lock to the session. The app does not know of it until Deliver. Add returns false if the session has ended, or the lock
// is not valid at the time t; then the caller hands the lock back. On success, the lock takes over the
// caller's pin of the lease. before are locks of this sidecar that the new grant shows to be lost. The
// caller loses them when it holds no mutex.
func (s *Session) Add(w Won, a *Admission, t clock.Tick) (before []*Lock, ok bool) {
	h := &Lock{
		Key: w.Req.Key, Token: w.Token, s: s, acquiredAt: w.AcquiredAt.UnixNano(), since: t.Now.Sub(s.set.began),
		Traceparent: w.Req.Traceparent, terms: termsOf(&w), changes: changesOf(&w), request: w.Req.RequestID,
		ofGroup: a.Key != "",
	}
	h.setTo(isShare, w.Req.Shared)
	h.under.Store(w.Lease)
	if !h.Valid(t) {
		return nil, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return nil, false
	}
	for _, own := range s.held.over(h) {
		s.loseUnreleasedLocked(own, types.LostStore)
	}
	s.held.put(h)
	h.undelivered = true
	s.undelivered++
	a.lock = h
	s.set.locks.Add(1)
	s.set.bytes.Add(h.bytesLocked())
	s.set.cfg.Needs.Begin(s.needs)
	if !h.until.IsZero() {
		h.maxHoldTimer = time.AfterFunc(h.until.Sub(s.set.clk.Now()), h.LoseAtMaxHold)
	}
	before = s.set.put(h)
	if s.set.awaited.Load() {
		clock.Wake(s.set.came)
	}
	return before, true
}

func (s *Session) hasUndeliveredLocked(a *Admission) bool {
	return a.lock != nil && s.held.has(a.lock) && a.lock.Valid(clock.Read(s.set.clk))
}

// HasUndelivered reports whether the session has the lock of a call that has not returned, and it is valid.
func (s *Session) HasUndelivered(a *Admission) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hasUndeliveredLocked(a)
}

// LockOf returns the last lock that a call has won, or nil. The session may not hold it any more.
func (s *Session) LockOf(a *Admission) *Lock {
	s.mu.Lock()
	defer s.mu.Unlock()
	return a.lock
}

// Deliver makes the locks of calls visible to the app. If one is lost, it does nothing and returns false.
func (s *Session) Deliver(admissions ...*Admission) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range admissions {
		if !s.hasUndeliveredLocked(a) {
			return false
		}
		if a.ExpiresIn = a.lock.remaining(clock.Read(s.set.clk)); a.ExpiresIn <= 0 {
			return false
		}
	}
	for _, a := range admissions {
		h := a.lock
		h.undelivered = false
		h.span.Begin(h.Token, s.name)
		s.undelivered--
		s.leaveLocked(a)
		for e := range s.entrances[h.Key] {
			if h.Admits(e.req) {
				e.Wake()
			}
		}
		s.notifyStopLocked(h)
	}
	return true
}

// HandBackLock takes the undelivered lock of a call out of the session. The caller releases it; settled is called after the last try.
// A lost lock is released, too, if the store may still have it. A lock that has left its session by a release may be released twice, which does no
// harm. HandBackLock returns nil if there is nothing to release.
func (s *Session) HandBackLock(a *Admission, settled func()) *Release {
	h, now := s.LockOf(a), s.set.clk.Now()
	r := h.newUnrequestedRelease(settled)
	if s.forget(h, End{Release: r}) || h.Lease().LostEarly(now) || h.heldFor(now) < h.minHold {
		return r
	}
	return nil
}
