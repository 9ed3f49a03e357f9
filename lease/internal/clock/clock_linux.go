package clock

import (
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// started and bootAtStart are one moment.
var (
	started     = time.Now()
	bootAtStart = bootTime()
	lastGlance  glances
)

// suspended is how far CLOCK_BOOTTIME has moved ahead of CLOCK_MONOTONIC, which stands still during
// a suspension.
func suspended(now time.Time) time.Duration {
	monotonic := now.Sub(started)
	return lastGlance.ahead(monotonic, time.Duration(now.UnixNano())-monotonic, bootAhead)
}

// glances remembers the last look at CLOCK_BOOTTIME, which takes a system call. A suspension moves
// the wall clock ahead of the monotonic one by its length, and package time reads these two without
// a system call. It is overlooked only if somebody sets the wall clock back by its length within
// glanceLasts, which is shorter than the way back to user space.
type glances struct{ last atomic.Pointer[glance] }

type glance struct {
	// monotonic is when; wall by how much the wall clock was ahead of it.
	monotonic, wall time.Duration
	// ahead is by how much CLOCK_BOOTTIME was.
	ahead time.Duration
}

// glanceLasts is how long a glance is good for, and how far the clocks may drift apart meanwhile:
// both far below SuspensionLimit.
const glanceLasts = time.Millisecond

// ahead returns what the last glance saw if it is still good, else what look returns. The clocks
// were read before that.
func (g *glances) ahead(monotonic, wall time.Duration, look func() time.Duration) time.Duration {
	if last := g.last.Load(); last != nil && (monotonic-last.monotonic).Abs() < glanceLasts && (wall-last.wall).Abs() < glanceLasts {
		return last.ahead
	}
	ahead := look()
	g.last.Store(&glance{monotonic: monotonic, wall: wall, ahead: ahead})
	return ahead
}

// bootAhead reads the clocks one after the other. A process that was stopped in between reads
// again, because its own stop would look like a suspension.
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
