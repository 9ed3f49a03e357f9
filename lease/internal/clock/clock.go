// Package clock is the one seam through which package lease reads time.
package clock

import "time"

// Clock reads time.
type Clock interface {
	// Now has a monotonic reading that goes on while the process is stopped.
	Now() time.Time
	// Suspended is for how long the machine had been suspended at now, which Now has just returned,
	// since any fixed moment. A suspended Linux machine's monotonic clock stands still, the
	// database's does not: a lease must not outlive that.
	Suspended(now time.Time) time.Duration
}

// SuspensionLimit is the shortest suspension that counts.
const SuspensionLimit = 50 * time.Millisecond

// Tick is one reading of a clock. A call takes it once and passes it down.
type Tick struct {
	Now time.Time
	clk Clock
}

// Read reads the clock.
func Read(c Clock) Tick { return Tick{Now: c.Now(), clk: c} }

// Suspended is [Clock].Suspended at the tick.
func (t Tick) Suspended() time.Duration { return t.clk.Suspended(t.Now) }

// Past reports whether a time has come; the zero time never does.
func Past(until, now time.Time) bool { return !until.IsZero() && !now.Before(until) }

// System reads the machine's clocks.
type System struct{}

// Now returns the current time.
func (System) Now() time.Time { return time.Now() }

// Suspended counts since the machine started.
func (System) Suspended(now time.Time) time.Duration { return suspended(now) }
