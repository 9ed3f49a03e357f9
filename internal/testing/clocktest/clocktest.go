// Package clocktest has the clock of tests under virtual time.
package clocktest

import "time"

// Bubble is the clock of a test's bubble (testing/synctest), on a machine that is never suspended. The system's clock would compare the real CLOCK_BOOTTIME with
// virtual time: wherever a bubble is slower than real time, on a busy machine, that looks like a suspension, and ends each lease.
type Bubble struct{}

// Now is the time of the bubble.
func (Bubble) Now() time.Time { return time.Now() }

// Suspended is zero.
func (Bubble) Suspended(time.Time) time.Duration { return 0 }
