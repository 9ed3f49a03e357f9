package holdings

import (
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// Downgrade notes that the store is asked to make an exclusive lock a share, which may have happened from
// then on: others are granted shares, and no cohort gets the lock. first: the store was not asked before.
// Errors: [ErrNotHeld]; [types.EnteredError], because the outer entries rely on the exclusive lock.
func (s *Session) Downgrade(h *Lock) (first bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !s.held.has(h):
		return false, ErrNotHeld
	case len(h.entered) > 1:
		return false, &types.EnteredError{Key: h.Key, Entries: h.depth()}
	}
	return !h.setTo(isDowngraded, true), nil
}

// KeepsExclusive notes that the store did not downgrade the lock.
func (h *Lock) KeepsExclusive() { h.setTo(isDowngraded, false) }

// BecomeShare notes that the store has made the lock a share.
func (h *Lock) BecomeShare(limit, slot int) {
	s := h.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.IsShare() {
		return
	}
	held := s.held.remove(h)
	s.set.held.share(h)
	if held {
		s.held.put(h)
	}
	c := h.change()
	c.limit, c.slot = limit, slot
}

// IsKnownAs reports whether the store may know the lock under this token: that of a share, or the first one of
// a cohort.
func (h *Lock) IsKnownAs(token int64) bool {
	return h.Token == token || !h.IsShare() && store.OfGrant(token, h.Token)
}
