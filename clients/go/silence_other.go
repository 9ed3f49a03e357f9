//go:build !linux

package locksidecar

import (
	"syscall"
	"time"
)

// limitUnanswered does nothing, because only Linux has this limit. Probes end a silent connection, and each call has its own limit.
func limitUnanswered(syscall.RawConn, time.Duration) {}
