// Package clock is the only source of time of package lease.
package clock

import (
	"context"
	"math/rand/v2"
	"time"
)

// Clock reads time.
type Clock interface {
	// Now has a monotonic reading that continues while the process is stopped.
	Now() time.Time
	// Suspended is how long the machine has been suspended in total, since some fixed moment. now is the last
	// result of Now. On a suspended Linux machine the monotonic clock stands still, but the database's does
	// not, and a lease must not outlive that.
	Suspended(now time.Time) time.Duration
}

// SuspensionLimit is the shortest suspension that counts.
const SuspensionLimit = 50 * time.Millisecond

// Tick is one reading of a clock. A call reads once and passes the Tick down.
type Tick struct {
	Now time.Time
	clk Clock
}

// Read reads the clock.
func Read(c Clock) Tick { return Tick{Now: c.Now(), clk: c} }

// Suspended is [Clock].Suspended at the tick.
func (t Tick) Suspended() time.Duration { return t.clk.Suspended(t.Now) }

// Past reports whether a time has come. The zero time never comes.
func Past(until, now time.Time) bool { return !until.IsZero() && !now.Before(until) }

// System reads the machine's clocks.
type System struct{}

// Now returns the current time.
func (System) Now() time.Time { return time.Now() }

// Suspended counts since the machine started.
func (System) Suspended(now time.Time) time.Duration { return suspended(now) }

// RetryPause is the pause after a failed operation of the store.
const RetryPause = 250 * time.Millisecond

// jitterShare makes a pause up to a tenth shorter, so that sidecars that started together do not stay synchronous.
const jitterShare = 0.1

// Jitter returns a random factor for a pause, at most 1.
func Jitter() float64 { return 1 - jitterShare*rand.Float64() }

// Jittered returns a slightly shorter pause.
func Jittered(d time.Duration) time.Duration { return time.Duration(float64(d) * Jitter()) }

// Rest waits for the duration, or until ctx ends; then it returns the context's error.
func Rest(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
