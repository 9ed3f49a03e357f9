package sidecar

import (
	"log/slog"
	"runtime/debug"

	"github.com/locksidecar/locksidecar/internal/config"
)

const (
	// connMemory is for a waiting call: two thirds buffers, the rest stack. An idle one takes half.
	connMemory = 40 << 10
	// Connections may take two thirds of GOMEMLIMIT. The rest is for the sidecar and its sessions.
	connShare, connShares = 2, 3
)

// maxConns is how many connections are served at a time: each session and waiting call may need one.
// With GOMEMLIMIT there are no more than fit: the next one is told so, while a sidecar that is killed
// loses everybody's locks.
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
