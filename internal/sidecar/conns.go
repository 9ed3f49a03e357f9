package sidecar

import (
	"log/slog"
	"runtime/debug"

	"github.com/locksidecar/locksidecar/internal/config"
)

const (
	// connMemory is what a connection on which a call waits in line takes: two thirds of
	// it its buffers, the rest its stack. One that is idle takes half of it.
	connMemory = 40 << 10
	// Of GOMEMLIMIT connections may take two thirds. The rest is for the sidecar itself
	// and what its sessions hold.
	connShare, connShares = 2, 3
)

// maxConns is how many connections are served at a time: each session and each waiting
// call may need one of its own. Where the memory is limited (GOMEMLIMIT, which the
// manifests set) there are no more than fit: whoever comes too late is told so, while a
// sidecar without memory would be killed, and everybody's locks be lost.
func maxConns(cfg config.Config, log *slog.Logger) int {
	wanted := 4*cfg.MaxSessions + cfg.MaxWaiters
	fit := connsThatFit(debug.SetMemoryLimit(-1)) // which only asks
	if fit < int64(wanted) {
		log.Info("memory limits the connections", "connections", fit, "without", wanted, "setting", "GOMEMLIMIT")
		return int(fit)
	}
	return wanted
}

func connsThatFit(memory int64) int64 {
	return max(1, memory/connShares*connShare/connMemory)
}
