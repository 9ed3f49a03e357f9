package cas

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/locksidecar/locksidecar/internal/metrics"
	"github.com/locksidecar/locksidecar/store"
)

// This file is what backends have in common, beside [Readiness].

// ServerConfig is what the configurations of backends have in common.
type ServerConfig struct {
	// URL is described in docs/stores.md. Again, if it is not nil, returns the URL as it is now, because a password may
	// be replaced. It is called before each connection.
	URL   string
	Again func() (string, error)
	// Timeout limits one operation; 5 seconds if zero.
	Timeout time.Duration
	// Logger, Tracers and Metrics may be nil.
	Logger  *slog.Logger
	Tracers trace.TracerProvider
	Metrics *metrics.Store
}

// DefaultTimeout is the Timeout of a ServerConfig without one.
const DefaultTimeout = 5 * time.Second

// Failed makes the error of an operation from that of one of its requests, whose own name and outcome it replaces. It is nil if
// there is none.
func Failed(op string, err error, unknown bool) error {
	if err == nil {
		return nil
	}
	return &store.Error{Op: op, Err: cause(err), Unknown: unknown}
}

// cause returns an error without the name of the request that failed.
func cause(err error) error {
	if e, ok := errors.AsType[*store.Error](err); ok {
		return e.Err
	}
	return err
}

// A backend pauses for FirstPause after a failure, and for up to LongPause after several.
const (
	FirstPause = 50 * time.Millisecond
	LongPause  = time.Second
)

// Backoff is the pause after failures that follow each other, for all who try again in the background. The zero value is ready.
type Backoff struct{ pause time.Duration }

// Next returns for how long to pause after one more failure. It is random, so that many instances do not come at the same time.
func (b *Backoff) Next() time.Duration {
	pause := max(b.pause, FirstPause)
	b.pause = min(2*pause, LongPause)
	return pause/2 + rand.N(pause) //nolint:gosec // spreads load
}

// Reset forgets the failures, after a success.
func (b *Backoff) Reset() { b.pause = 0 }

// Pause waits. It returns false if ctx ended before.
func Pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Highest is the greatest number that was seen, such as a version. It only grows.
type Highest struct{ atomic.Int64 }

// Raise notes a number.
func (h *Highest) Raise(to int64) {
	for now := h.Load(); to > now && !h.CompareAndSwap(now, to); {
		now = h.Load()
	}
}

// Behind is the first text, in the order of bytes, behind all those that begin with a prefix. It is empty if there is none.
func Behind(prefix string) string {
	end := []byte(prefix)
	for len(end) > 0 {
		if last := len(end) - 1; end[last] < 0xff {
			end[last]++
			return string(end)
		}
		end = end[:len(end)-1]
	}
	return ""
}

// AddStates sets the states of the leases that records name. known has those that were read with the records. ask reads the states of
// others, and adds them to known; a lease that it does not add is dead.
func AddStates(records []*Record, known map[store.LeaseID]LeaseState, ask func(leases []store.LeaseID) error) error {
	var unknown []store.LeaseID
	for _, r := range records {
		for _, id := range r.Leases {
			if _, found := known[id]; !found {
				known[id] = LeaseState{}
				unknown = append(unknown, id)
			}
		}
	}
	if len(unknown) > 0 {
		if err := ask(unknown); err != nil {
			return err
		}
	}
	for _, r := range records {
		r.States = make([]LeaseState, len(r.Leases))
		for i, id := range r.Leases {
			r.States[i] = known[id]
		}
	}
	return nil
}
