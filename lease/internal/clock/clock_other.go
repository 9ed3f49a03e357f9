//go:build !linux

package clock

import "time"

// bootTime is unknown here, so leases rely on the monotonic clock alone. The product runs on Linux.
func bootTime() time.Duration { return time.Since(started) }
