package mysql

import (
	"strconv"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/store"
)

// quiet is what packets say about the history: which one it is, and until when nothing is granted.
type quiet struct {
	mu      sync.Mutex
	until   time.Time
	history store.History
}

// heard reads the result of a packet's guard.
func (b *Backend) heard(found results) error {
	if len(found) == 0 || len(found[0]) != 1 || len(found[0][0]) != 3 {
		return errFormat
	}
	left, history := found[0][0][0], found[0][0][1]
	if left == nil || len(history) != 16 {
		return errMetaLost
	}
	micros, err := strconv.ParseInt(string(left), 10, 64)
	if err != nil {
		return errFormat
	}
	b.quiet.mu.Lock()
	defer b.quiet.mu.Unlock()
	b.quiet.history = store.History(history)
	if until := time.Now().Add(time.Duration(micros) * time.Microsecond); micros > 0 {
		if until.After(b.quiet.until.Add(time.Second)) { // tolerates the delay of an answer
			b.log.Warn("quiet time after a failover: nothing is granted until it is over, because grants may have been forgotten",
				"until", until.UTC().Format(time.RFC3339), "seconds", time.Until(until).Round(time.Second).Seconds())
		}
		b.quiet.until = until
	} else {
		b.quiet.until = time.Time{}
	}
	return nil
}

// left is the rest of the quiet time, or 0.
func (q *quiet) left() time.Duration {
	q.mu.Lock()
	defer q.mu.Unlock()
	return max(0, time.Until(q.until))
}
