package holdings

import (
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// Signal does what others ask a holder for. It reports false when the grant is not known here.
func (hs *Set) Signal(sig store.Signal) (known bool) {
	h := hs.meantBy(sig)
	if h == nil {
		_, ended := hs.Ended(sig.Key, sig.Token)
		return ended
	}
	switch sig.Kind {
	case store.Stop:
		if h.s.stop(h, sig) {
			hs.obs.AskedToStop(h.observed())
		}
	case store.Break:
		if h.GiveUp(types.LostForced) {
			hs.obs.Broken(h.observed())
		}
	}
	return true
}

// meantBy is the lock that a signal means, or nil. A break names a grant, and a request to stop does it for a
// share. For an exclusive lock it is for whoever holds the key, so it may name the first of the cohort.
func (hs *Set) meantBy(sig store.Signal) *Lock {
	if h := hs.Find(sig.Key, sig.Token); h != nil {
		return h
	}
	if h := hs.Get(sig.Key); h != nil && sig.Kind == store.Stop && h.cohort.serves() && store.OfGrant(sig.Token, h.Token) {
		return h
	}
	return nil
}

// stop notes a request to stop and tells the app. It reports false if h is not held, or was asked
// before for the same reason.
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

// Shown takes over a request to stop that the store shows. It may have come while the lock was between two
// holders of a cohort, when there was nobody to be told.
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
	if !h.unpublished {
		s.notifyStopLocked(h)
	}
}

func (s *Session) notifyStopLocked(h *Lock) {
	if s.onStop != nil && h.stopping != nil {
		s.onStop(types.Stop{Key: h.Key, Token: h.Token, Reason: h.stopping.Reason})
	}
}

func sameReason(a, b *string) bool { return a == b || a != nil && b != nil && *a == *b }
