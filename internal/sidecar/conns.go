package sidecar

import (
	"log/slog"
	"runtime/debug"

	"github.com/locksidecar/locksidecar/internal/config"
)

const (
	// connMemory is the memory of a waiting call: two thirds are buffers, the rest is stack. An idle connection
	// takes half.
	connMemory = 40 << 10
	// Connections may take two thirds of GOMEMLIMIT. The sidecar and its sessions need the rest.
	connShare, connShares = 2, 3
)

// maxConns is how many connections are served at a time, because each session and waiting call may need one.
// GOMEMLIMIT limits them further: refusing a connection is better than a killed sidecar, which loses all locks.
func maxConns(cfg config.Config, log *slog.Logger) int {
	wanted := 4*cfg.MaxSessions + cfg.MaxWaiters
	fit := connsThatFit(debug.SetMemoryLimit(-1)) // -1 only reads the limit
	if fit < int64(wanted) {
		log.Info("memory limits the connections", "connections", fit, "without", wanted, "setting", "GOMEMLIMIT")
		return int(fit)
	}
	return wanted
}

func connsThatFit(memory int64) int64 {
	return max(1, memory/connShares*connShare/connMemory)
}
