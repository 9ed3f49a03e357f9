package holdings

import (
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/types"
)

// Admission is what a session knows of a call that asks for a lock. The call counts in the limit of locks, from Admit until its lock counts
// itself. A won lock comes to its call here. The session's mutex guards all fields except ExpiresIn.
type Admission struct {
	Key   string // set in a call for several keys
	taken bool
	// lock is the last lock that the call's attempt has won: Add sets it, and Deliver gives it to the app.
	lock *Lock
	// ExpiresIn is how long the lock was valid when it was delivered.
	ExpiresIn time.Duration
}

// Admit counts a call, if the session may have one more lock.
func (s *Session) Admit(a *Admission) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.roomLocked(1); err != nil {
		return err
	}
	a.taken = true
	s.pending++
	return nil
}

// AdmitAll counts a group, if the session may have all its locks. Its keys keep their admissions until its locks are delivered.
func (s *Session) AdmitAll(admissions []*Admission) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.roomLocked(len(admissions)); err != nil {
		return err
	}
	s.pending += len(admissions)
	for _, a := range admissions {
		a.taken = true
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
func (s *Session) Leave(a *Admission) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leaveLocked(a)
}

func (s *Session) leaveLocked(a *Admission) {
	if a.taken {
		a.taken = false
		s.pending--
	}
}
