package clock

import (
	"time"

	"golang.org/x/sys/unix"
)

// bootTime is the reading of CLOCK_BOOTTIME.
func bootTime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		// The clock exists since Linux 2.6.39; a zero reads as never suspended.
		return 0
	}
	return time.Duration(ts.Nano())
}
