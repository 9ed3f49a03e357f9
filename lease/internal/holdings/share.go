package holdings

import (
	"github.com/locksidecar/locksidecar/lease/internal/types"
)

// IsDowngraded reports whether an exclusive lock may have become a share in the store.
func (h *Lock) IsDowngraded() bool { return h.is(isDowngraded) }

// Downgrade records that the store is asked to turn an exclusive lock into a share. From then on this may have
// happened: others are granted shares, and the cohort does not get the lock. Errors: [ErrNotHeld]; [types.InvalidError],
// because the outer entries rely on the exclusive lock.
func (s *Session) Downgrade(h *Lock) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !s.held.has(h):
		return ErrNotHeld
	case len(h.entered) > 1:
		return types.Invalidf("field mode", "lock %q is entered %d times; only a lock that is entered once can become shared", h.Key, h.depth())
	}
	h.change().downgrades++
	h.setTo(isDowngraded, true)
	return nil
}

// NotDowngraded records that the store refused one of the questions of Downgrade, and did nothing. If another one is under way, or
// has no answer, the lock may still be a share.
func (h *Lock) NotDowngraded() {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	c := h.change()
	if c.downgrades--; c.downgrades == 0 {
		h.setTo(isDowngraded, false)
	}
}

// BecomeShare records that the store has made the lock a share.
func (h *Lock) BecomeShare(limit, slot int) {
	s := h.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.IsShare() {
		return
	}
	held := s.held.remove(h)
	s.set.share(h)
	if held {
		s.held.put(h)
	}
	c := h.change()
	c.limit, c.slot = limit, slot
}
