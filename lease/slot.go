package lease

import (
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/lease/internal/heartbeat"
	"github.com/locksidecar/locksidecar/lease/internal/observe"
	"github.com/locksidecar/locksidecar/lease/internal/types"
)

// quotaSlot is a call's share of its session's limit, from its admission until its
// lock counts by itself. The session's mutex guards it, but for left.
type quotaSlot struct {
	key   string // of a call for several keys
	taken bool
	lock  *heldLock // what the call's attempt has won last
	// left is how long the lock could be relied on when it was published.
	left time.Duration
}

// admit counts a call in, if the session may have one lock more.
func (s *Session) admit(p *quotaSlot) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.roomLocked(1); err != nil {
		return err
	}
	p.taken = true
	s.pending++
	return nil
}

// admitAll counts a group in, if the session may have so many locks more and holds
// none of them: it would wait for itself. The group's own parts keep their places
// until they are published.
func (s *Session) admitAll(slots []*quotaSlot) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range slots {
		if h := s.held[p.key]; h != nil && !h.unpublished && h.valid(clock.Read(s.set.clk)) {
			return &types.HoldsError{Key: h.key}
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

// roomLocked says why the session may not have n locks more.
func (s *Session) roomLocked(n int) error {
	if s.ended {
		return types.ErrSessionEnded
	}
	if limit := s.set.cfg.MaxLocksPerSession; len(s.held)-s.unpublished+s.pending+n > limit {
		return &types.LimitError{What: "locks in this session", Setting: "LOCKSIDECAR_MAX_LOCKS_PER_SESSION", Limit: limit}
	}
	return nil
}

// leave counts a call out.
func (s *Session) leave(p *quotaSlot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leaveLocked(p)
}

func (s *Session) leaveLocked(p *quotaSlot) {
	if p.taken {
		p.taken = false
		s.pending--
	}
}

// won is a lock that was granted to a request of the session.
type won struct {
	req        *types.Request
	token      int64
	lease      *heartbeat.Lease
	acquiredAt time.Time
	// until is when its MaxHold is over, zero for none.
	until time.Time
	span  *observe.Hold
}

// addMember makes a lock the session's, as a part: the app does not know of it. It reports false
// when the session has ended, or the lock can not be relied on at the time t: then nobody holds
// it, and the caller hands it back. Else the lock has taken over the caller's pin of the lease.
// It returns the lock that another session believes to hold under that key, if any: the store
// says that it is lost, and the caller tells so when it holds no mutex.
func (s *Session) addMember(w won, p *quotaSlot, t clock.Tick) (before *heldLock, ok bool) {
	h := &heldLock{
		key: w.req.Key, token: w.token, s: s, acquiredAt: w.acquiredAt.UnixNano(), since: t.Now.Sub(s.set.began),
		traceparent: w.req.Traceparent, terms: termsOf(&w), changes: changesOf(w.req.Data), request: w.req.RequestID,
	}
	h.under.Store(w.lease)
	if !h.valid(t) {
		return nil, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return nil, false
	}
	if own := s.held[h.key]; own != nil {
		s.loseLocked(own, types.LostExpired)
	}
	h.unpublished = true
	s.unpublished++
	s.held[h.key] = h
	p.lock = h
	s.set.locks.Add(1)
	if !h.until.IsZero() {
		h.outlived = time.AfterFunc(h.until.Sub(s.set.clk.Now()), h.outlive)
	}
	return s.set.held.put(h), true
}

// lockOf is what the slot's call has won last, or nil. The session may not hold it any more.
func (s *Session) lockOf(p *quotaSlot) *heldLock {
	s.mu.Lock()
	defer s.mu.Unlock()
	return p.lock
}

// hasMember reports whether the session has the part of a slot, and can rely on it.
func (s *Session) hasMember(p *quotaSlot) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hasMemberLocked(p)
}

func (s *Session) hasMemberLocked(p *quotaSlot) bool {
	return p.lock != nil && s.held[p.lock.key] == p.lock && p.lock.valid(clock.Read(s.set.clk))
}

// publish makes the parts of slots locks of the app. It does nothing and reports false when one
// of them is lost.
func (s *Session) publish(slots ...*quotaSlot) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range slots {
		if !s.hasMemberLocked(p) {
			return false
		}
		if p.left = p.lock.remaining(clock.Read(s.set.clk)); p.left <= 0 {
			return false
		}
	}
	for _, p := range slots {
		h := p.lock
		h.unpublished = false
		h.span.Begin(h.key, h.token, s.name)
		s.unpublished--
		s.leaveLocked(p)
		s.openLocked(h)
		s.notifyStopLocked(h)
	}
	return true
}

// handBackMember releases the part of a slot, or the lock that it has become. settled is called when no
// more tries follow. It does nothing and reports false when the session does not hold it any more.
func (s *Session) handBackMember(p *quotaSlot, settled func()) bool {
	h := s.lockOf(p)
	r := h.newEnd(settled)
	if !s.take(h, grantEnd{release: r}) {
		return false
	}
	r.send()
	return true
}

// handBack releases a lock, or takes an entry off it, of which the answer could not be
// delivered. It works in the background.
func (s *Session) handBack(g types.Grant) {
	h := s.find(g.Key, g.Token)
	if h == nil {
		return
	}
	r := h.newEnd(nil)
	r.undelivered, r.means = true, func(e entry) bool { return e.serial == g.Entry }
	if entries, err := s.exit(h, r); err == nil && entries == 0 {
		r.send()
	}
}

// againAll is what a request for several keys was granted, as long as the session holds it; nil if
// one of the locks is not held.
func (s *Session) againAll(slots []*quotaSlot, request uuid.UUID) []types.Grant {
	s.mu.Lock()
	defer s.mu.Unlock()
	grants := make([]types.Grant, 0, len(slots))
	for _, p := range slots {
		g, ok := s.againLocked(p.key, request)
		if !ok {
			return nil
		}
		grants = append(grants, g)
	}
	for _, g := range grants {
		s.held[g.Key].countAnswer(g.Entry)
	}
	s.set.obs.Cached(observe.CachedRepeat)
	return grants
}
