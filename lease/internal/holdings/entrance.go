package holdings

import (
	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/lease/internal/types"
)

// Entrance is a waiting call that enters when another call of the session gets the lock for the same owner.
type Entrance struct {
	s    *Session
	req  *types.Request
	open chan struct{} // has one token when the call should try
}

// Opens receives when the call should try to enter.
func (e *Entrance) Opens() <-chan struct{} { return e.open }

// Wake makes the call try to enter.
func (e *Entrance) Wake() { clock.Wake(e.open) }

// ExpectEntry notifies a reentrant request when it may enter, until Close.
func (s *Session) ExpectEntry(req *types.Request) *Entrance {
	e := &Entrance{s: s, req: req, open: make(chan struct{}, 1)}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.entrances == nil {
		s.entrances = make(map[string]map[*Entrance]struct{})
	}
	if s.entrances[req.Key] == nil {
		s.entrances[req.Key] = make(map[*Entrance]struct{})
	}
	s.entrances[req.Key][e] = struct{}{}
	if h := s.held.exclusive[req.Key]; h != nil && !h.undelivered && h.Admits(req) {
		e.Wake()
	}
	return e
}

// Close ends the Entrance.
func (e *Entrance) Close() {
	s, key := e.s, e.req.Key
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.entrances[key], e)
	if len(s.entrances[key]) == 0 {
		delete(s.entrances, key)
	}
}
