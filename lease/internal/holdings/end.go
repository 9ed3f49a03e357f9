package holdings

import (
	"cmp"
	"errors"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/observe"
	"github.com/locksidecar/locksidecar/lease/internal/types"
)

// forget removes h from the session. It returns false if h was removed before.
func (s *Session) forget(h *Lock, e End) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.forgetLocked(h, e)
}

// forgetLocked is forget for a caller that holds s.mu. Every lock leaves its session here.
func (s *Session) forgetLocked(h *Lock, e End) bool {
	if !s.held.remove(h) {
		return false
	}
	if h.undelivered {
		s.undelivered--
	}
	s.observeEnd(h, e)
	s.set.remove(h)
	s.set.ends.add(grantRef{h.Key, h.Token}, e)
	s.addReleaseLocked(e.Release)
	s.set.locks.Add(-1)
	s.set.bytes.Add(-h.bytesLocked())
	s.set.cfg.Needs.End(s.needs)
	if h.maxHoldTimer != nil {
		h.maxHoldTimer.Stop()
	}
	return true
}

// observeEnd reports that h has left its session, unless h was never delivered. The caller holds s.mu.
func (s *Session) observeEnd(h *Lock, e End) {
	if h.undelivered {
		return
	}
	reason := observe.Released
	switch {
	case e.Lost != "":
		reason = string(e.Lost)
	case e.Release != nil && e.Release.ofSession:
		reason = observe.SessionEnded
	}
	var heldFor time.Duration
	if e.Release != nil {
		heldFor = e.Release.HeldFor
	} else {
		heldFor = h.heldFor(s.set.clk.Now())
	}
	s.set.obs.HoldEnded(h.span, h.Key, reason, heldFor)
}

// HandBack ends an entry whose answer could not be delivered. With the last entry, the lock leaves the session, and the
// caller releases it. Otherwise it returns nil.
func (s *Session) HandBack(g types.Grant) *Release {
	h := cmp.Or(s.Find(g.Key, g.Token), s.findLost(&types.ReleaseRequest{Key: g.Key, Token: g.Token}))
	if h == nil {
		return nil
	}
	r := h.newUnrequestedRelease(nil)
	r.undelivered, r.means = true, func(e entry) bool { return e.serial == g.Entry }
	entries, err := s.ReleaseEntry(h, r)
	if errors.Is(err, ErrNotHeld) {
		entries, err = s.releaseLostEntry(h, r)
	}
	if err != nil || entries > 0 {
		return nil
	}
	return r
}
