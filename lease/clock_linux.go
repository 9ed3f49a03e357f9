package lease

import (
	"time"

	"golang.org/x/sys/unix"
)

// started and bootAtStart are one moment on the two clocks.
var (
	started     = time.Now()
	bootAtStart = bootTime()
)

// suspended is how far CLOCK_BOOTTIME, which goes on while the machine is
// suspended, has moved ahead of CLOCK_MONOTONIC, which does not and which is the
// one that package time reads (without a system call). The two are read one after
// the other, so a process that was stopped in between must read again: it would
// see its own stop as a suspension.
func suspended() time.Duration {
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
