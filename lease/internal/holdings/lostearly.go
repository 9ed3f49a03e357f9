package holdings

import (
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/types"
)

// A lock is lost early if its lease was: see [heartbeat.Lease.LostEarly]. The store may still have it. So the session has it in its loss,
// and it is released when the app releases it, when the session ends, or when an operator breaks it. If none of these happens before the
// lease's deadline, the lease is revoked then.

// loss is how a session lost a lock.
type loss struct {
	reason types.LostReason
	// lock is set if it was lost early.
	lock *Lock
}

// forgetLostEarlyLocked removes and returns the locks that were lost early, which still need a release. The caller holds s.mu.
func (s *Session) forgetLostEarlyLocked() (early []*Lock) {
	for ref := range s.lost {
		if h := s.forgetLostLocked(ref); h != nil {
			early = append(early, h)
		}
	}
	return early
}

// forgetLostLocked removes and returns a lost lock if it still needs a release, otherwise nil. The caller holds s.mu.
func (s *Session) forgetLostLocked(ref grantRef) *Lock {
	l, noted := s.lost[ref]
	if !noted || l.lock == nil {
		return nil
	}
	h := l.lock
	l.lock = nil
	s.lost[ref] = l
	if !h.Lease().LostEarly(s.set.clk.Now()) {
		return nil
	}
	return h
}

// BelievedUntil is until when the app of a lock that was lost early, and not given up, may believe in it: its lease's deadline. Zero:
// it may not.
func (h *Lock) BelievedUntil() time.Time {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	if l := h.Lease(); h.s.lost[grantRef{h.Key, h.Token}].lock == h && l.LostEarly(h.s.set.clk.Now()) {
		return l.Deadline()
	}
	return time.Time{}
}

// ReleaseLost ends an entry of a lost lock that the store may still have. After the last entry, the caller releases the lock.
// Otherwise it returns nil.
func (s *Session) ReleaseLost(req *types.ReleaseRequest) *Release {
	if s == nil {
		return nil
	}
	h := s.findLost(req)
	if h == nil {
		return nil
	}
	r := h.NewRelease(&types.ReleaseRequest{RequestID: req.RequestID, Reentry: req.Reentry, Traceparent: h.Traceparent}, s.set.clk.Now(), nil)
	if entries, err := s.releaseLostEntry(h, r); err != nil || entries > 0 {
		return nil
	}
	return r
}

// findLost returns the lost lock that a release means if the store may still have it, otherwise nil.
func (s *Session) findLost(req *types.ReleaseRequest) *Lock {
	s.mu.Lock()
	defer s.mu.Unlock()
	if req.Token != 0 {
		return s.lost[grantRef{req.Key, req.Token}].lock
	}
	for ref, l := range s.lost {
		if ref.key != req.Key || l.lock == nil {
			continue
		}
		if _, ok := l.lock.entryOf(req.RequestID); ok {
			return l.lock
		}
	}
	return nil
}

// breakLost releases a lost lock that the store may still have. Its app was notified of the loss.
func (hs *Set) breakLost(ref grantRef) {
	for _, s := range hs.All() {
		s.mu.Lock()
		h := s.forgetLostLocked(ref)
		s.mu.Unlock()
		if h != nil {
			hs.rel.Release(h.newUnrequestedRelease(nil)) // the store has ended its MinHold
			hs.obs.Broken(h.observed())
		}
	}
}

// releaseLostEntry is ReleaseEntry for a lost lock.
func (s *Session) releaseLostEntry(h *Lock, r *Release) (left int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ref := grantRef{h.Key, h.Token}
	if s.lost[ref].lock != h {
		return 0, ErrNotHeld
	}
	if left, err = h.releaseEntryLocked(r); err == nil && left == 0 && s.forgetLostLocked(ref) == nil {
		err = ErrNotHeld
	}
	return left, err
}
