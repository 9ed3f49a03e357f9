package lease

import (
	"time"

	"golang.org/x/sys/unix"
)

// suspended is CLOCK_BOOTTIME, which goes on while the machine is suspended,
// minus CLOCK_MONOTONIC, which does not. The two are read one after the other,
// so a process that was stopped in between must read again: it would see its own
// stop as a suspension.
func suspended() time.Duration {
	const close = time.Millisecond
	var offset time.Duration
	for range 4 {
		before := gettime(unix.CLOCK_MONOTONIC)
		boot := gettime(unix.CLOCK_BOOTTIME)
		after := gettime(unix.CLOCK_MONOTONIC)
		offset = boot - after
		if after-before < close {
			break
		}
	}
	return offset
}

func gettime(clock int32) time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(clock, &ts); err != nil {
		// Both clocks exist since Linux 2.6.39; a zero reads as never suspended.
		return 0
	}
	return time.Duration(ts.Nano())
}
