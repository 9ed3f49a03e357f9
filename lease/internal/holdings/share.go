package holdings

import (
	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// Downgrade notes that the store is asked to make an exclusive lock a share, which may have happened from
// then on: others are granted shares, and no cohort gets the lock. Errors: [ErrNotHeld];
// [types.EnteredError], because the outer entries rely on the exclusive lock.
func (s *Session) Downgrade(h *Lock) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !s.held.has(h):
		return ErrNotHeld
	case len(h.entered) > 1:
		return &types.EnteredError{Key: h.Key, Entries: h.depth()}
	}
	h.downgraded.Store(true)
	return nil
}

// KeepsExclusive notes that the store did not downgrade the lock.
func (h *Lock) KeepsExclusive() { h.downgraded.Store(false) }

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

// Owns reports whether the app has a lock of a key in this session, and whether that is a share.
func (s *Session) Owns(key string) (held, share bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ownsLocked(key)
}

func (s *Session) ownsLocked(key string) (held, share bool) {
	h := s.firstLocked(key)
	return h != nil, h != nil && h.IsShare()
}

// First is the lock of a key that the app has in this session, of several shares the one with the smallest
// token, or nil.
func (s *Session) First(key string) *Lock {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.firstLocked(key)
}

func (s *Session) firstLocked(key string) (first *Lock) {
	for h := range s.ofKeyLocked(key) {
		if !h.unpublished && (first == nil || h.Token < first.Token) && h.Valid(clock.Read(s.set.clk)) {
			first = h
		}
	}
	return first
}

// ofKeyLocked yields the locks of a key, of which several are shares. s.mu is held.
func (s *Session) ofKeyLocked(key string) func(yield func(*Lock) bool) {
	return func(yield func(*Lock) bool) {
		if h := s.held.exclusive[key]; h != nil && !yield(h) {
			return
		}
		for _, h := range s.held.shares[key] {
			if !yield(h) {
				return
			}
		}
	}
}

// ofRequestLocked is the lock of a key that a request with this id has got or entered, and the app knows of,
// or nil. s.mu is held.
func (s *Session) ofRequestLocked(key string, request uuid.UUID) *Lock {
	for h := range s.ofKeyLocked(key) {
		if _, ok := h.entryOf(request); ok && !h.unpublished {
			return h
		}
	}
	return nil
}
