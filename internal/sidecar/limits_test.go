package sidecar

import (
	"log/slog"
	"math"
	"runtime"
	"testing"

	"github.com/locksidecar/locksidecar/internal/config"
	"github.com/locksidecar/locksidecar/internal/testing/await"
)

// TestMaxConns: memory and descriptors that are limited limit the connections, and nothing else does but
// the limits on what needs them.
// Proves: threat flood
func TestMaxConns(t *testing.T) {
	t.Parallel()
	cfg := config.Config{MaxSessions: 1000, MaxWaiters: 10_000, PoolMaxConns: 4}
	for _, c := range []struct {
		memory, files, each int64
		want                int
	}{
		{math.MaxInt64, math.MaxInt64, 1, 14_000},
		{1 << 30, 1 << 20, 1, 14_000},
		{100 << 20, 1 << 20, 1, 1706}, // what the manifests set
		{1, 1 << 20, 1, 1},
		{math.MaxInt64, 1024, 1, 792},
		{math.MaxInt64, 256, 1, 24},
		{math.MaxInt64, 16, 1, fewestConns},
		{100 << 20, 1024, 1, 792},
		{math.MaxInt64, 1024, filesOnNode, 396},
	} {
		if got := maxConns(cfg, c.memory, c.files, c.each, slog.New(slog.DiscardHandler)); got != c.want {
			t.Errorf("with %d bytes and %d files, %d for each: %d connections, not %d", c.memory, c.files, c.each, got, c.want)
		}
	}
}

// TestMemoryLow: live memory near the limit is noticed at the next collection, and also that it is free again.
// Proves: threat flood
func TestMemoryLow(t *testing.T) { //nolint:paralleltest // it uses much of the process's memory
	const limit = 256 << 20
	low := memoryLow(limit, slog.New(slog.DiscardHandler))
	looksLow := func() bool { runtime.GC(); return low() }
	await.Until(t, "memory is not low", func() bool { return !looksLow() })
	ballast := make([]byte, limit)
	await.Until(t, "memory is low", looksLow)
	runtime.KeepAlive(ballast)
	await.Until(t, "memory is free again", func() bool { return !looksLow() })
}
