// Package clock is the only source of time of package lease.
package clock

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
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

// started and bootAtStart are readings of the same moment.
var (
	started     = time.Now()
	bootAtStart = bootTime()
	lastGlance  glances
)

// Suspended is by how much CLOCK_BOOTTIME has moved ahead of CLOCK_MONOTONIC, which stands still during a
// suspension.
func (System) Suspended(now time.Time) time.Duration {
	monotonic := now.Sub(started)
	return lastGlance.ahead(monotonic, time.Duration(now.UnixNano())-monotonic, bootAhead)
}

// glances remembers the last reading of CLOCK_BOOTTIME, which takes a system call. A suspension moves the
// wall clock ahead of the monotonic one by its length, and package time reads both without a system call. A
// suspension is overlooked only if the wall clock is set back by its length within glanceLasts, which is
// shorter than the return to user space.
type glances struct{ last atomic.Pointer[glance] }

type glance struct {
	// monotonic is the time of the reading. wall is by how much the wall clock was ahead of it.
	monotonic, wall time.Duration
	// ahead is by how much CLOCK_BOOTTIME was ahead of it.
	ahead time.Duration
}

// glanceLasts is how long a glance is valid, and how far the clocks may drift apart meanwhile. It is far
// below SuspensionLimit.
const glanceLasts = time.Millisecond

// ahead returns the last glance if it is still valid, otherwise the result of look. The arguments are clock
// readings from before the call.
func (g *glances) ahead(monotonic, wall time.Duration, look func() time.Duration) time.Duration {
	if last := g.last.Load(); last != nil && (monotonic-last.monotonic).Abs() < glanceLasts && (wall-last.wall).Abs() < glanceLasts {
		return last.ahead
	}
	ahead := look()
	g.last.Store(&glance{monotonic: monotonic, wall: wall, ahead: ahead})
	return ahead
}

// bootAhead reads the clocks one after the other. If the process was stopped in between, it reads again,
// because its own stop would look like a suspension.
func bootAhead() time.Duration {
	const soon = time.Millisecond
	var ahead time.Duration
	for range 4 {
		before := time.Since(started)
		boot := bootTime()
		after := time.Since(started)
		ahead = boot - bootAtStart - after
		if after-before < soon {
			break
		}
	}
	return ahead
}

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

// Loop calls step until ctx ends: again after the pause that step returned, or when [Wake] wakes it.
func Loop(ctx context.Context, wake <-chan struct{}, step func() time.Duration) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for ctx.Err() == nil {
		timer.Reset(step())
		select {
		case <-timer.C:
		case <-wake:
		case <-ctx.Done():
		}
	}
}

// Wake adds an element to a channel that has room for one, unless it has one.
func Wake(wake chan<- struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
}
