package holdings

import (
	"github.com/locksidecar/locksidecar/lease/internal/heartbeat"
	"github.com/locksidecar/locksidecar/lease/internal/types"
)

// These are the ways of a loss:
//
//	what happens                              | it begins in                | the lock's function          | a release follows
//	a lease is past its deadline, or dead     | heartbeat Leases.Lose       | LoseUnder                    | no
//	a read finds a lock past its time         | Manager.loseOverdue         | LoseUnder, or LoseAtMaxHold  | no, or yes
//	the store does not know the lock          | whoever has asked it        | Lock.Lose                    | no
//	the store grants a key that is held here  | Session.Add                 | loseUnreleasedLocked         | no
//	MaxHold is over                           | LoseAtMaxHold               | LoseAndRelease               | yes
//	an operator breaks the lock               | Set.Signal                  | LoseAndRelease               | yes
//
// A release follows only if the store still has the lock, and its lease lives on. heartbeat tells the manager of a lost lease
// (leaseUsers.LeaseLost in lease/leases.go), which tells the locks here, and the waits (attempt.Acquirer.LoseWaitsUnder).
//
// All of them end in loseLocked: the lock leaves its session, which remembers the reason. This is what the app hears:
//
//	an explicit session      | the event "lost" in its stream, at once: notifyLossLocked
//	each session             | lock_lost with the reason, when a call next names the token: LossOf
//	the lock is undelivered  | nothing; the call that has won it finds out (Deliver), and tries again, but not after its MaxHold
//
// A session that ends does not come here: Session.End notes and tells its losses, if the app has not ended it, and releases all its
// locks.

// LoseUnder is Lose with a lost lease. It does nothing if the lock was moved to another lease.
func (h *Lock) LoseUnder(l *heartbeat.Lease, reason types.LostReason) {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	if h.Lease() == l {
		h.s.loseUnreleasedLocked(h, reason)
	}
}

// Lose loses a lock that the store does not have any more. It returns false if the lock had left its session before.
func (h *Lock) Lose(reason types.LostReason) bool {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	return h.s.loseUnreleasedLocked(h, reason)
}

// LoseAtMaxHold ends a lock whose MaxHold is over. The lock is lost and also released, because its lease lives on.
func (h *Lock) LoseAtMaxHold() {
	if h.LoseAndRelease(types.LostMaxHold) {
		h.s.set.obs.MaxHoldOver(h.observed())
	}
}

// LoseAndRelease removes a lock from its session, notifies the session of the loss, and releases the lock. It
// returns false if the session no longer holds the lock. A break also ends its MinHold.
func (h *Lock) LoseAndRelease(reason types.LostReason) bool {
	r := h.newUnrequestedRelease(nil)
	r.Claim.AtOnce = reason == types.LostForced
	h.s.mu.Lock()
	ok := h.s.loseLocked(h, reason)
	if ok {
		h.s.addReleaseLocked(r)
	}
	h.s.mu.Unlock()
	if ok {
		h.s.set.rel.Release(r)
	}
	return ok
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

// LossOf reports whether the session lost a lock, and why.
func (s *Session) LossOf(key string, token int64) (types.LostReason, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l, ok := s.lost[grantRef{key, token}]
	return l.reason, ok
}

// unpinLocked ends the use of the lease, because the lock is lost or its release is settled. The caller holds s.mu.
func (h *Lock) unpinLocked() {
	if h.unpinned { // a lost lock that is released
		return
	}
	h.unpinned = true
	h.Lease().Unpin()
}
