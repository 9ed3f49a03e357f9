package holdings

import (
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/types"
)

// Slot counts a call in its session's limit, from its admission until its lock counts itself. The session's
// mutex guards all fields except Left.
type Slot struct {
	Key   string // set in a call for several keys
	taken bool
	lock  *Lock // the last lock that the call's attempt has won
	// Left is how long the lock was valid when it was published.
	Left time.Duration
}

// Admit counts a call, if the session may have one more lock.
func (s *Session) Admit(p *Slot) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.roomLocked(1); err != nil {
		return err
	}
	p.taken = true
	s.pending++
	return nil
}

// AdmitAll counts a group, if the session may have all its locks. Members keep their slots until they are published.
func (s *Session) AdmitAll(slots []*Slot) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.roomLocked(len(slots)); err != nil {
		return err
	}
	s.pending += len(slots)
	for _, p := range slots {
		p.taken = true
	}
	return nil
}

func (s *Session) roomLocked(n int) error {
	if s.ended {
		return types.ErrSessionEnded
	}
	if limit := s.set.cfg.MaxLocksPerSession; s.held.count()-s.unpublished+s.pending+n > limit {
		return &types.LimitError{What: "locks in this session", Setting: "LOCKSIDECAR_MAX_LOCKS_PER_SESSION", Limit: limit}
	}
	return nil
}

// Leave ends the counting of a call.
func (s *Session) Leave(p *Slot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leaveLocked(p)
}

func (s *Session) leaveLocked(p *Slot) {
	if p.taken {
		p.taken = false
		s.pending--
	}
}
