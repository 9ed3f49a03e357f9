package holdings

import (
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/types"
)

// Quota is a call's part of its session's limit of locks, from the call's admission until its lock counts itself. The
// session's mutex guards all fields except ExpiresIn.
type Quota struct {
	Key   string // set in a call for several keys
	taken bool
	// lock is the last lock that the call's attempt has won: Add sets it, and Deliver gives it to the app. So a won lock comes to its
	// call here.
	lock *Lock
	// ExpiresIn is how long the lock was valid when it was delivered.
	ExpiresIn time.Duration
}

// Admit counts a call, if the session may have one more lock.
func (s *Session) Admit(q *Quota) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.roomLocked(1); err != nil {
		return err
	}
	q.taken = true
	s.pending++
	return nil
}

// AdmitAll counts a group, if the session may have all its locks. Its keys keep their quotas until its locks are delivered.
func (s *Session) AdmitAll(quotas []*Quota) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.roomLocked(len(quotas)); err != nil {
		return err
	}
	s.pending += len(quotas)
	for _, q := range quotas {
		q.taken = true
	}
	return nil
}

func (s *Session) roomLocked(n int) error {
	if s.ended {
		return types.ErrSessionEnded
	}
	if limit := s.set.cfg.MaxLocksPerSession; s.held.count()-s.undelivered+s.pending+n > limit {
		return &types.LimitError{What: "locks in this session", Setting: "LOCKSIDECAR_MAX_LOCKS_PER_SESSION", Limit: limit}
	}
	return nil
}

// Leave ends the counting of a call.
func (s *Session) Leave(q *Quota) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leaveLocked(q)
}

func (s *Session) leaveLocked(q *Quota) {
	if q.taken {
		q.taken = false
		s.pending--
	}
}
