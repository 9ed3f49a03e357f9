package locksidecar

import (
	"context"
	"errors"
	"time"
)

const (
	// leastAsk is the least pause between two questions, and leastPatience the least time for an answer.
	leastAsk      = 50 * time.Millisecond
	leastPatience = 250 * time.Millisecond
)

// lease is for how long the locks of one TTL are held without news from the sidecar. A sidecar that hangs renews nothing and says
// nothing, and at the end of the lease others get its locks. So while there are such locks, the session asks for one of them after each
// third of the lease. The answer is news of all, because a sidecar that answers also tells of lost locks. Session.mu guards it.
type lease struct {
	ttl   int64
	until time.Time // with a monotonic reading
	due   time.Time // of the next question
}

// prove notes news: the app may rely on the lease until this time.
func (l *lease) prove(until time.Time) {
	if until.After(l.until) {
		l.until = until
	}
	l.plan()
}

func (l *lease) plan() {
	l.due = time.Now().Add(max(time.Until(l.until)/3, leastAsk))
}

// leaseOf is the lease of the locks of a TTL. s.mu is held.
func (s *session) leaseOf(ttl *int64) *lease {
	n := int64(0)
	if ttl != nil {
		n = *ttl
	}
	l := s.leases[n]
	if l == nil {
		l = &lease{ttl: n}
		s.leases[n] = l
		go s.keep(l)
	}
	return l
}

// keep asks for the locks of a lease, until there are none.
func (s *session) keep(l *lease) {
	for {
		g, due := s.next(l)
		if g == nil {
			return
		}
		if wait := time.Until(due); wait > 0 {
			timer := time.NewTimer(wait)
			select {
			case <-timer.C:
			case <-s.life.Done():
				timer.Stop()
				return
			}
			continue // there may have been news meanwhile
		}
		s.ask(l, g)
	}
}

// next is a lock of a lease, and when to ask for it. Without such a lock, the lease is forgotten.
func (s *session) next(l *lease) (*grant, time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, g := range s.grants {
		if g.lease == l {
			return g, l.due
		}
	}
	delete(s.leases, l.ttl)
	return nil, time.Time{}
}

// ask asks for a lock of a lease, and decides whether the lease has ended.
func (s *session) ask(l *lease, g *grant) {
	s.mu.Lock()
	until := l.until
	s.mu.Unlock()
	sent := time.Now()
	patience := max(until.Sub(sent), leastPatience)
	answer, err := s.amend(s.life, g.key, amendBody{Token: g.token}, patience)
	now := time.Now()
	switch {
	case err == nil:
		s.mu.Lock()
		l.prove(sent.Add(ms(answer.ExpiresInMS)))
		s.mu.Unlock()
		return
	case s.life.Err() != nil:
		return
	case errors.Is(err, ErrLockLost), errors.Is(err, ErrNotHolder): // of this lock only
		s.drop(g)
		var e *Error
		if errors.Is(err, ErrLockLost) && errors.As(err, &e) {
			_ = g.lose(e.Reason, "")
		}
		return
	case errors.Is(err, ErrSessionEnded):
		s.end()
		return
	}
	s.mu.Lock()
	over := !now.Before(l.until)
	l.plan()
	s.mu.Unlock()
	// If the limit came much too late, this process was stopped, and the answer may be unread: ask once more.
	if over && now.Sub(sent) < patience+leastPatience {
		s.giveUp(l)
	}
}

// drop forgets a grant.
func (s *session) drop(g *grant) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.grants[g.grantID] == g {
		delete(s.grants, g.grantID)
	}
}

// giveUp notes that a lease has ended. If the sidecar goes on in time, it holds the locks nevertheless, so they are released.
func (s *session) giveUp(l *lease) {
	var lost []*grant
	s.mu.Lock()
	for id, g := range s.grants {
		if g.lease == l {
			lost = append(lost, g)
			delete(s.grants, id)
		}
	}
	s.mu.Unlock()
	for _, g := range lost {
		_ = g.lose("expired", "the sidecar does not answer, and the lease has ended")
		s.owe(func() error {
			for {
				answer, err := s.release(context.Background(), g.key, releaseBody{Token: g.token})
				if err != nil || answer.Free {
					return err // each entry of its owner
				}
			}
		})
	}
}
