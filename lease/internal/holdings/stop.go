package holdings

import (
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// Signal applies a signal to a holder. It returns false if the grant is not known here.
func (hs *Set) Signal(sig store.Signal) (known bool) {
	h := hs.meantBy(sig)
	if h == nil {
		if sig.Kind == store.Break {
			hs.breakLost(grantRef{sig.Key, sig.Token})
		}
		_, ended := hs.Ended(sig.Key, sig.Token)
		return ended
	}
	switch sig.Kind {
	case store.Stop:
		if h.s.stop(h, sig) {
			hs.obs.AskedToStop(h.observed())
		}
	case store.Break:
		if h.LoseAndRelease(types.LostForced) {
			hs.obs.Broken(h.observed())
		}
	}
	return true
}

// meantBy returns the lock that a signal means, or nil. A break names a grant, as does a request to stop a share. A
// request to stop an exclusive lock is for its present holder, so it may name the first member of the cohort.
func (hs *Set) meantBy(sig store.Signal) *Lock {
	if h := hs.Find(sig.Key, sig.Token); h != nil {
		return h
	}
	if h := hs.Get(sig.Key); h != nil && sig.Kind == store.Stop && h.wasHandedOn() && store.OfGrant(sig.Token, h.Token) {
		return h
	}
	return nil
}

func (s *Session) notifyStopLocked(h *Lock) {
	if s.onStop != nil && h.stopping != nil {
		s.onStop(types.Stop{Key: h.Key, Token: h.Token, Reason: h.stopping.Reason})
	}
}

// stop records a request to stop and notifies the app. It returns false if h is not held, or had the same
// request before.
func (s *Session) stop(h *Lock, sig store.Signal) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.held.has(h) || h.stopping != nil && sameReason(h.stopping.Reason, sig.Reason) {
		return false
	}
	at := sig.At
	if h.stopping != nil {
		at = h.stopping.At
	}
	s.askLocked(h, &store.Stopping{Reason: sig.Reason, At: at})
	return true
}

// Shown applies a request to stop that the store shows. The request may have arrived between two holders of
// a cohort, when no session could be notified.
func (h *Lock) Shown(asked *store.Stopping) {
	h.s.mu.Lock()
	first := asked != nil && h.stopping == nil && h.s.held.has(h)
	if first {
		h.s.askLocked(h, asked)
	}
	h.s.mu.Unlock()
	if first {
		h.s.set.obs.AskedToStop(h.observed())
	}
}

func (s *Session) askLocked(h *Lock, asked *store.Stopping) {
	h.change().stopping = asked
	if !h.undelivered {
		s.notifyStopLocked(h)
	}
}

func sameReason(a, b *string) bool { return a == b || a != nil && b != nil && *a == *b }
