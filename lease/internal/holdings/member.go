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
	// Cohort is the cohort of the grant, or nil.
	Cohort Cohort
}

// AddMember adds a lock as a member of the session. It returns false if the session has ended, or the lock
// is not valid at the time t; then the caller hands the lock back. On success, the lock takes over the
// caller's pin of the lease. before are locks of this sidecar that the new grant shows to be lost. The
// caller loses them when it holds no mutex.
func (s *Session) AddMember(w Won, p *Slot, t clock.Tick) (before []*Lock, ok bool) {
	h := &Lock{
		Key: w.Req.Key, Token: w.Token, s: s, acquiredAt: w.AcquiredAt.UnixNano(), since: t.Now.Sub(s.set.began),
		Traceparent: w.Req.Traceparent, terms: termsOf(&w), changes: changesOf(&w), request: w.Req.RequestID,
		ofGroup: p.Key != "",
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
		s.loseLocked(own, types.LostExpired)
	}
	s.held.put(h)
	h.unpublished = true
	s.unpublished++
	p.lock = h
	s.set.locks.Add(1)
	if !h.until.IsZero() {
		h.outlived = time.AfterFunc(h.until.Sub(s.set.clk.Now()), h.Outlive)
	}
	before = s.set.put(h)
	if s.set.awaited.Load() {
		clock.Wake(s.set.came)
	}
	return before, true
}

func (s *Session) hasMemberLocked(p *Slot) bool {
	return p.lock != nil && s.held.has(p.lock) && p.lock.Valid(clock.Read(s.set.clk))
}

// HasMember reports whether the session has the member of a slot, and it is valid.
func (s *Session) HasMember(p *Slot) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hasMemberLocked(p)
}

// LockOf returns the last lock that the slot's call has won, or nil. The session may not hold it any more.
func (s *Session) LockOf(p *Slot) *Lock {
	s.mu.Lock()
	defer s.mu.Unlock()
	return p.lock
}

// Publish makes the members of slots visible to the app. If a member is lost, it does nothing and returns false.
func (s *Session) Publish(slots ...*Slot) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range slots {
		if !s.hasMemberLocked(p) {
			return false
		}
		if p.Left = p.lock.remaining(clock.Read(s.set.clk)); p.Left <= 0 {
			return false
		}
	}
	for _, p := range slots {
		h := p.lock
		h.unpublished = false
		h.span.Begin(h.Key, h.Token, s.name)
		s.unpublished--
		s.leaveLocked(p)
		for e := range s.entrances[h.Key] {
			if h.Admits(e.req) {
				e.Wake()
			}
		}
		s.notifyStopLocked(h)
	}
	return true
}

// HandBackMember takes the lock of a slot out of the session. The caller releases it; settled is called after the last try.
// It returns nil if the session does not hold the lock.
func (s *Session) HandBackMember(p *Slot, settled func()) *Release {
	h := s.LockOf(p)
	r := h.newEnd(settled)
	if !s.take(h, End{Release: r}) {
		return nil
	}
	return r
}
