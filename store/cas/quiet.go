package cas

import (
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/store"
)

// QuietTime is the quiet time of a server, as far as this instance knows: see [Backend]. It is only shown. Of several servers, another
// may grant meanwhile, so each job asks.
type QuietTime struct{ until atomic.Pointer[time.Time] }

// Note notes for how long the server grants nothing, and returns for how long it was known to grant nothing.
func (q *QuietTime) Note(left time.Duration) (before time.Duration) {
	before = q.Left()
	switch {
	case left > 0:
		until := time.Now().Add(left)
		q.until.Store(&until)
	case before > 0:
		q.until.Store(nil)
	}
	return before
}

// Left is the rest of the quiet time, or 0.
func (q *QuietTime) Left() time.Duration {
	if until := q.until.Load(); until != nil {
		return max(0, time.Until(*until))
	}
	return 0
}

// refused notes that a server refused to grant for so long, and logs the begin of a quiet time.
func (s *Store) refused(quiet time.Duration) {
	if quiet > 0 && s.quiet.Note(quiet) == 0 {
		s.log.Warn("quiet time: nothing is granted until it is over, because the server was replaced in a failover, or restarted, or is new, "+
			"so it may not know of locks that others hold", "left", quiet.Round(time.Millisecond))
	}
}

// Quiet implements [store.Quieter]. A backend hears of a quiet time also by the answers to other requests than grants.
func (s *Store) Quiet() time.Duration {
	left := s.quiet.Left()
	if q, ok := s.backend.(store.Quieter); ok {
		left = max(left, q.Quiet())
	}
	return left
}
