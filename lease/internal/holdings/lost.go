package holdings

import (
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/heartbeat"
	"github.com/locksidecar/locksidecar/lease/internal/types"
)

// These are the ways of a loss. The last step is loseLocked: the lock leaves its session, which remembers the reason, and the app is told. A release
// follows only if the store still has the lock, and its lease lives on.
//
//	what happens                           | first function                | of the session's lock | a release follows
//	a lease is past its deadline, or dead  | heartbeat Lose, LoseExpired   | LoseUnder             | no
//	the store does not know the lock       | Lock.Lose                     | loseUnreleasedLocked  | no
//	the store grants a key that is held    | Session.Add                   | loseUnreleasedLocked  | no
//	MaxHold is over                        | LoseAtMaxHold                 | LoseAndRelease        | yes
//	an operator breaks the lock            | Set.Signal                    | LoseAndRelease        | yes
//
// heartbeat tells the manager (leaseUsers.LeaseLost in lease/leases.go), which tells the locks here, and the waits (attempt.Acquirer.LeaseLost). A
// session that ends does not come here: Session.End notes and tells its losses, if the app has not ended it, and releases all its locks.

// loss is how a session lost a lock.
type loss struct {
	reason types.LostReason
	// lock is set if the lease died early. The store keeps the key until the deadline, or until the app releases it.
	lock *Lock
}

// loseUnreleasedLocked loses a lock that the store or the deadline has ended, so no release follows. It returns false if h was removed
// before. The caller holds s.mu.
func (s *Session) loseUnreleasedLocked(h *Lock, reason types.LostReason) bool {
	first := s.loseLocked(h, reason)
	if first {
		h.unpinLocked()
	}
	ref := grantRef{h.Key, h.Token}
	if l, noted := s.lost[ref]; first && noted && h.Lease().LostEarly(s.set.clk.Now()) {
		l.lock = h
		s.lost[ref] = l
	}
	return first
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

// BelievedUntil is until when the app of a lock that was lost early, and not given up, may believe in it: its lease's deadline. Zero: it may not.
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
			hs.rel.Release(h.newEnd(nil)) // the store has ended its MinHold
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

// loseLocked removes h from the session, notes the loss, and notifies the app. It returns false if h was removed before. The
// caller holds s.mu.
func (s *Session) loseLocked(h *Lock, reason types.LostReason) bool {
	if !s.forgetLocked(h, End{Lost: reason}) {
		return false
	}
	if h.undelivered {
		return true // its call finds out, and the app does not know of the lock
	}
	ref := grantRef{h.Key, h.Token}
	if s.lost == nil {
		s.lost = make(map[grantRef]loss)
	}
	if len(s.lost) >= s.set.cfg.MaxLocksPerSession {
		for other := range s.lost { // most likely an old one
			delete(s.lost, other)
			break
		}
	}
	s.lost[ref] = loss{reason: reason}
	s.notifyLossLocked(h, reason)
	return true
}

func (s *Session) notifyLossLocked(h *Lock, reason types.LostReason) {
	if s.onLost != nil && !h.undelivered {
		s.onLost(types.Lost{Key: h.Key, Token: h.Token, Reason: reason})
	}
}

// unpinLocked ends the use of the lease, because the lock is lost or its release is settled. The caller holds s.mu.
func (h *Lock) unpinLocked() {
	if h.unpinned { // a lost lock that is released
		return
	}
	h.unpinned = true
	h.Lease().Unpin()
}

// LossOf reports whether the session lost a lock, and why.
func (s *Session) LossOf(key string, token int64) (types.LostReason, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l, ok := s.lost[grantRef{key, token}]
	return l.reason, ok
}

// Lose takes the lock from its session and notifies the app. It returns false if the lock was taken before.
func (h *Lock) Lose(reason types.LostReason) bool {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	return h.s.loseUnreleasedLocked(h, reason)
}

// LoseUnder is Lose, unless the lock was moved to another lease.
func (h *Lock) LoseUnder(l *heartbeat.Lease, reason types.LostReason) {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	if h.Lease() == l {
		h.s.loseUnreleasedLocked(h, reason)
	}
}
