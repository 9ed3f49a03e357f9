package clock

import (
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// started and bootAtStart are readings of the same moment.
var (
	started     = time.Now()
	bootAtStart = bootTime()
	lastGlance  glances
)

// suspended is by how much CLOCK_BOOTTIME has moved ahead of CLOCK_MONOTONIC, which stands still during a
// suspension.
func suspended(now time.Time) time.Duration {
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

func bootTime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		// The clock exists since Linux 2.6.39; a zero reads as never suspended.
		return 0
	}
	return time.Duration(ts.Nano())
}
