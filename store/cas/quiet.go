package cas

import (
	"log/slog"
	"sync/atomic"
	"time"
)

// quiet is the quiet time of a server, as far as this instance knows: see [Backend]. It is only shown. Of several servers, another
// may grant meanwhile, so each job asks.
type quiet struct{ until atomic.Pointer[time.Time] }

// note notes that the server grants nothing for so long, and logs the begin of a quiet time.
func (q *quiet) note(left time.Duration, log *slog.Logger) {
	if left <= 0 {
		return
	}
	until := time.Now().Add(left)
	if q.left() == 0 {
		log.Warn("quiet time after a failover: nothing is granted until it is over, because grants may have been forgotten",
			"left", left.Round(time.Millisecond))
	}
	q.until.Store(&until)
}

// left is the rest of the quiet time, or 0.
func (q *quiet) left() time.Duration {
	if until := q.until.Load(); until != nil {
		return max(0, time.Until(*until))
	}
	return 0
}

// Quiet is the rest of the quiet time, or 0.
func (s *Store) Quiet() time.Duration { return s.quiet.left() }
