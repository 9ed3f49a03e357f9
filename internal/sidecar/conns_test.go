package sidecar

import (
	"log/slog"
	"math"
	"runtime/debug"
	"testing"

	"github.com/locksidecar/locksidecar/internal/config"
)

// TestMaxConns: memory that is limited limits the connections, and nothing else does but
// the limits on what needs them.
func TestMaxConns(t *testing.T) { //nolint:paralleltest // the limit is the process's
	before := debug.SetMemoryLimit(-1)
	t.Cleanup(func() { debug.SetMemoryLimit(before) })
	cfg := config.Config{MaxSessions: 1000, MaxWaiters: 10_000}
	for _, c := range []struct {
		memory int64
		want   int
	}{
		{math.MaxInt64, 14_000},
		{1 << 30, 14_000},
		{100 << 20, 1706}, // what the manifests set
		{1, 1},
	} {
		debug.SetMemoryLimit(c.memory)
		if got := maxConns(cfg, slog.New(slog.DiscardHandler)); got != c.want {
			t.Errorf("with %d bytes: %d connections, not %d", c.memory, got, c.want)
		}
	}
}
