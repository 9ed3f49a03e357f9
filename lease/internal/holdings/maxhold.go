package holdings

import (
	"github.com/locksidecar/locksidecar/lease/internal/types"
)

// Outlive ends a lock whose MaxHold is over. Its lease goes on, so it is released as well as lost.
func (h *Lock) Outlive() {
	if h.GiveUp(types.LostMaxHold) {
		h.s.set.obs.MaxHoldOver(h.observed())
	}
}

// GiveUp takes a lock from its session, which is told that it is lost, and releases it. It reports
// false when the session does not hold it any more. If the lock is broken, its MinHold is not kept.
func (h *Lock) GiveUp(reason types.LostReason) bool {
	r := h.newEnd(nil)
	r.atOnce = reason == types.LostForced
	h.s.mu.Lock()
	ok := h.s.forfeitLocked(h, reason)
	if ok {
		h.s.freesLocked(r)
	}
	h.s.mu.Unlock()
	if ok {
		r.send()
	}
	return ok
}
