package lease

import (
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// signalLocks are the locks that signals are about.
type signalLocks struct{ m *Manager }

// LeasesInUse returns the open leases with users.
func (l signalLocks) LeasesInUse() (ids []store.LeaseID) {
	for _, l := range l.m.leases.all() {
		if l.users.Load() > 0 && l.life.Load() != nil {
			ids = append(ids, l.id)
		}
	}
	return ids
}

// HoldsAny reports whether a session holds a lock.
func (l signalLocks) HoldsAny() bool { return l.m.sessionLocks.Load() > 0 }

// MayGet reports whether a call waits for the key.
func (l signalLocks) MayGet(key string) bool { return l.m.queue.length(key) > 0 }

// Apply does what a signal asks for. It reports false when the grant that is meant
// is not known here.
func (l signalLocks) Apply(sig store.Signal) bool {
	m := l.m
	h := m.held.get(sig.Key)
	if h == nil || h.token != sig.Token {
		_, ended := m.recentEnds.get(grantRef{sig.Key, sig.Token})
		return ended
	}
	switch sig.Kind {
	case store.Stop:
		if h.s.stop(h, sig) {
			m.obs.AskedToStop(h.observed())
		}
	case store.Break:
		if m.giveUp(h, types.LostForced) {
			m.obs.Broken(h.observed())
		}
	}
	return true
}

// stop notes that the holder of h is asked to stop, and tells the app, again only
// if the reason is another; else it reports false.
func (s *Session) stop(h *heldLock, sig store.Signal) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held[h.key] != h || h.stopping != nil && sameReason(h.stopping.Reason, sig.Reason) {
		return false
	}
	at := sig.At
	if h.stopping != nil {
		at = h.stopping.At
	}
	h.change().stopping = &store.Stopping{Reason: sig.Reason, At: at}
	if !h.unpublished {
		s.notifyStopLocked(h)
	}
	return true
}

func (s *Session) notifyStopLocked(h *heldLock) {
	if s.onStop != nil && h.stopping != nil {
		s.onStop(types.Stop{Key: h.key, Token: h.token, Reason: h.stopping.Reason})
	}
}

func sameReason(a, b *string) bool { return a == b || a != nil && b != nil && *a == *b }
