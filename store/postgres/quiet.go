package postgres

import (
	"log/slog"
	"sync"
	"time"
)

// quiet is the end of the quiet time, as far as this instance knows.
type quiet struct {
	mu    sync.Mutex
	until time.Time
}

// note logs a quiet time once. Each new connection reads how long the quiet time still lasts.
func (q *quiet) note(log *slog.Logger, left time.Duration) {
	until := time.Now().Add(left)
	q.mu.Lock()
	longer := left > 0 && until.After(q.until.Add(time.Second)) // tolerates the delay of an answer
	if longer || left == 0 {
		q.until = until
	}
	q.mu.Unlock()
	if longer {
		log.Warn("quiet time: nothing is granted until it is over, because the server was promoted or restored, or has restarted, "+
			"so it may not know of locks that others hold", "until", until.UTC().Format(time.RFC3339), "left", left.Round(time.Millisecond))
	}
}

// Quiet implements [store.Quieter].
func (s *Space) Quiet() time.Duration { return s.quiet.left() }

// left is the rest of the quiet time, or 0.
func (q *quiet) left() time.Duration {
	q.mu.Lock()
	defer q.mu.Unlock()
	return max(0, time.Until(q.until))
}
