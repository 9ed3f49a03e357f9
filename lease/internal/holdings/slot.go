package holdings

import (
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/lease/internal/heartbeat"
	"github.com/locksidecar/locksidecar/lease/internal/observe"
	"github.com/locksidecar/locksidecar/lease/internal/types"
)

// Slot counts a call in its session's limit, from its admission until its lock counts itself. The session's
// mutex guards all fields except Left.
type Slot struct {
	Key   string // set in a call for several keys
	taken bool
	lock  *Lock // the last lock that the call's attempt has won
	// Left is how long the lock was valid when it was published.
	Left time.Duration
}

// Admit counts a call, if the session may have one more lock.
func (s *Session) Admit(p *Slot) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.roomLocked(1); err != nil {
		return err
	}
	p.taken = true
	s.pending++
	return nil
}

// AdmitAll counts a group, if the session may have all its locks and holds none of the keys, because the
// group would otherwise wait for its own session. Members keep their slots until they are published.
func (s *Session) AdmitAll(slots []*Slot) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range slots {
		if held, _ := s.ownsLocked(p.Key); held {
			return types.Invalidf("field keys", "lock %q is held by this session already", p.Key)
		}
	}
	if err := s.roomLocked(len(slots)); err != nil {
		return err
	}
	s.pending += len(slots)
	for _, p := range slots {
		p.taken = true
	}
	return nil
}

func (s *Session) roomLocked(n int) error {
	if s.ended {
		return types.ErrSessionEnded
	}
	if limit := s.set.cfg.MaxLocksPerSession; s.held.count()-s.unpublished+s.pending+n > limit {
		return &types.LimitError{What: "locks in this session", Setting: "LOCKSIDECAR_MAX_LOCKS_PER_SESSION", Limit: limit}
	}
	return nil
}

// Leave ends the counting of a call.
func (s *Session) Leave(p *Slot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leaveLocked(p)
}

func (s *Session) leaveLocked(p *Slot) {
	if p.taken {
		p.taken = false
		s.pending--
	}
}

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
	Cohort *Cohort
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
	return s.set.held.put(h), true
}

// LockOf returns the last lock that the slot's call has won, or nil. The session may not hold it any more.
func (s *Session) LockOf(p *Slot) *Lock {
	s.mu.Lock()
	defer s.mu.Unlock()
	return p.lock
}

// HasMember reports whether the session has the member of a slot, and it is valid.
func (s *Session) HasMember(p *Slot) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hasMemberLocked(p)
}

func (s *Session) hasMemberLocked(p *Slot) bool {
	return p.lock != nil && s.held.has(p.lock) && p.lock.Valid(clock.Read(s.set.clk))
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
		s.openLocked(h)
		s.notifyStopLocked(h)
	}
	return true
}

// HandBackMember releases the lock of a slot. settled is called after the last try. If the session does not
// hold the lock, it does nothing and returns false.
func (s *Session) HandBackMember(p *Slot, settled func()) bool {
	h := s.LockOf(p)
	r := h.newEnd(settled)
	if !s.take(h, End{Release: r}) {
		return false
	}
	r.send()
	return true
}

// HandBack ends, in the background, an entry whose answer could not be delivered. The last entry releases the lock.
func (s *Session) HandBack(g types.Grant) {
	h := s.Find(g.Key, g.Token)
	if h == nil {
		return
	}
	r := h.newEnd(nil)
	r.undelivered, r.means = true, func(e entry) bool { return e.serial == g.Entry }
	if entries, err := s.Exit(h, r); err == nil && entries == 0 {
		r.send()
	}
}

// AgainAll returns what a request for several keys was granted, or nil if the session does not hold all of it.
func (s *Session) AgainAll(slots []*Slot, request uuid.UUID) []types.Grant {
	s.mu.Lock()
	defer s.mu.Unlock()
	grants := make([]types.Grant, 0, len(slots))
	for _, p := range slots {
		g, ok := s.againLocked(p.Key, request)
		if !ok {
			return nil
		}
		grants = append(grants, g)
	}
	for _, g := range grants {
		s.held.find(g.Key, g.Token).countAnswer(g.Entry)
	}
	s.set.obs.Cached(observe.CachedRepeat)
	return grants
}
