package sidecar

import (
	"log/slog"
	"math"
	"runtime/debug"

	"golang.org/x/sys/unix"

	"github.com/locksidecar/locksidecar/internal/config"
	"github.com/locksidecar/locksidecar/proxy"
)

const (
	// connMemory is the memory of a waiting call: two thirds are buffers, the rest is stack. An idle connection
	// takes half.
	connMemory = 40 << 10
	// Connections may take two thirds of GOMEMLIMIT. The sidecar and its sessions need the rest.
	connShare, connShares = 2, 3
	// Long bodies that are being read may take a part of GOMEMLIMIT, and maxBodies at most.
	bodyShare, maxBodies = 16, 64 << 20

	// ownFiles are descriptors for the process itself: its sockets and their locks, the log, the store's listener, the collector of
	// traces, and a password file that is read.
	ownFiles = 32
	// filesOnNode are the descriptors of a connection in node mode: its call may be passed on to the server before, by a connection of its own.
	filesOnNode = 2
	// fewestConns is the least number of connections that is worth a start.
	fewestConns = 8

	// memoryWithout is what live memory may be without GOMEMLIMIT.
	memoryWithout = 2 << 30
)

// memoryLimit is GOMEMLIMIT, or [math.MaxInt64].
func memoryLimit() int64 { return debug.SetMemoryLimit(-1) } // -1 only reads the limit

// fileLimit is the limit on open descriptors of this process. Go has raised the soft limit to the hard one.
func fileLimit() int64 {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil || limit.Cur > math.MaxInt64 {
		return math.MaxInt64
	}
	return int64(limit.Cur)
}

// maxConns is how many connections of apps are served at a time, because each session and waiting call may need one. GOMEMLIMIT
// and the limit on descriptors reduce it: refusing a connection is better than a killed sidecar, or one that cannot
// dial its store. Both lose all locks. each is how many descriptors a connection may need.
func maxConns(cfg config.Config, memory, files, each int64, log *slog.Logger) int {
	wanted := int64(4*cfg.MaxSessions + cfg.MaxWaiters)
	fit := min(wanted, connsThatFit(memory))
	if fit < wanted {
		log.Info("memory limits the connections", "connections", fit, "without", wanted, "setting", "GOMEMLIMIT")
	}
	// A broken connection to the store may still be open while another is dialled.
	others := ownFiles + 2*cfg.PoolMaxConns + proxy.OtherConns
	if cfg.TCPTokenFile != "" {
		others += proxy.StrangersConns
	}
	if left := max(fewestConns, (files-int64(others))/each); left < fit {
		log.Warn("the limit on open files limits the connections", "connections", left, "without", fit, "setting", "ulimit -n", "limit", files)
		fit = left
	}
	return int(fit)
}

func connsThatFit(limit int64) int64 {
	return max(1, limit/connShares*connShare/connMemory)
}
