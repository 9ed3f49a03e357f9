package lease

import "time"

// Clock is the one seam through which this package reads time.
type Clock interface {
	// Now has a monotonic reading that goes on while the process is stopped.
	Now() time.Time
	// Suspended is for how long the machine had been suspended at now, which Now has
	// just returned, since any fixed moment. The monotonic clock of a Linux machine
	// stands still meanwhile, the database's does not: a lease must not outlive that.
	Suspended(now time.Time) time.Duration
}

// SystemClock reads the machine's clocks.
type SystemClock struct{}

// Now returns the current time.
func (SystemClock) Now() time.Time { return time.Now() }

// Suspended returns how long the machine has been suspended since it started.
func (SystemClock) Suspended(now time.Time) time.Duration { return suspended(now) }
