// Package reload reads files again that may be replaced while they are used.
package reload

import (
	"log/slog"
	"sync"
	"time"
)

// Value is what was read from files.
type Value[T any] struct {
	// Every is the least time between two reads. A read happens only when the value is used.
	Every time.Duration

	read    func(before T) (T, error)
	log     *slog.Logger
	warning string

	mu     sync.Mutex
	looked time.Time
	value  T
	// problem is why the files cannot be used now, logged once; empty if they can.
	problem string
}

// Load calls read, first with the zero value, and from then on with what it returned last, so that it can tell whether the contents have changed.
// If a later call fails, the value stays. The warning, a constant, is logged once for each error.
func Load[T any](read func(before T) (T, error), log *slog.Logger, warning string) (*Value[T], error) {
	v := &Value[T]{Every: time.Second, read: read, log: log, warning: warning, looked: time.Now()}
	var err error
	if v.value, err = read(v.value); err != nil {
		return nil, err
	}
	return v, nil
}

// Current returns the value of the files as they are now, or were at most Every ago.
func (v *Value[T]) Current() T {
	v.mu.Lock()
	defer v.mu.Unlock()
	if time.Since(v.looked) < v.Every {
		return v.value
	}
	v.looked = time.Now()
	problem := ""
	if value, err := v.read(v.value); err != nil {
		problem = err.Error()
	} else {
		v.value = value
	}
	if problem != "" && problem != v.problem {
		v.log.Warn(v.warning, "error", problem) //nolint:sloglint // a constant of each of the two users
	}
	v.problem = problem
	return v.value
}
