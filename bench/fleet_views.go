package main

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/lease"
	"github.com/locksidecar/locksidecar/store"
)

// viewsWindow is for how long views that hold one lock each are looked at: six renewal intervals.
const viewsWindow = 30 * time.Second

// viewsOf measures what idle instances cost that hold one lock each, in one process: each with a space of its own, as sidecars are, and as views of one.
func (b *bench) viewsOf(start func(*bench, int) (*storeServer, error)) (string, error) {
	var t strings.Builder
	t.WriteString("| | instances | connections | listeners | statements a second | server, ms a second | process, ms a second | memory each (KiB) | goroutines each |\n|---|" + strings.Repeat("--:|", 8) + "\n")
	for _, n := range b.upTo(10, 50, 200) {
		for _, shared := range []bool{false, true} {
			line, err := b.idleViews(start, n, shared)
			if err != nil {
				return "", fmt.Errorf("%d instances: %w", n, err)
			}
			b.log.Print("fleet: views: " + line)
			t.WriteString(line + "\n")
		}
	}
	return t.String(), nil
}

func (b *bench) idleViews(start func(*bench, int) (*storeServer, error), n int, shared bool) (string, error) {
	server, err := start(b, n)
	if err != nil {
		return "", err
	}
	defer server.stop()
	if _, err := server.counts(); err != nil {
		return "", err
	}
	f := &cores{b: b, server: server, n: n, all: make([]*core, n)}
	memory, goroutines := inUse()
	if shared {
		space, err := openSpace(b.ctx, server.url)
		if err != nil {
			return "", err
		}
		defer space.Stop()
		f.space, f.beat = space, &lease.Beat{}
	}
	defer f.stop()
	o := f.each(16, func(i int) (time.Duration, error) {
		c, err := f.startOne(b.ctx, i)
		if err != nil {
			return 0, err
		}
		f.all[i] = c
		c.own, err = c.takes(b.ctx, lease.Request{Key: podKey(i)})
		return 0, err
	})
	if o.failed() > 0 {
		return "", fmt.Errorf("some did not start: %v", o.errors)
	}
	if err := b.rest(viewsWindow); err != nil { // their connections rest, and their renewals come together
		return "", err
	}
	s, err := f.measure("idle", false, func(context.Context) (*outcome, int) {
		_ = b.rest(viewsWindow)
		return &outcome{}, 1
	})
	if err != nil {
		return "", err
	}
	with, all := inUse()
	sec, kind := s.took.Seconds(), "a space each"
	if shared {
		kind = "views of one space"
	}
	return fmt.Sprintf("| %s | %d | %d | %d | %.2f | %.1f | %.1f | %.0f | %.1f |", kind, n, s.connections, s.listeners, float64(s.requests)/sec,
		milliseconds(s.server)/sec, milliseconds(s.own)/sec, float64(with-memory)/1024/float64(n), float64(all-goroutines)/float64(n)), nil
}

// inUse is the memory of what lives, with stacks, and how many goroutines there are.
func inUse() (bytes int64, goroutines int) {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse), runtime.NumGoroutine()
}

// openSpace starts the space of a node, whose views have the settings of sidecars that are configured with nothing else.
func openSpace(ctx context.Context, url string) (store.Space, error) {
	cfg, err := coreConfig(url, "node", fleetKeep)
	if err != nil {
		return nil, err
	}
	space, err := newSpace(cfg)
	if err != nil {
		return nil, err
	}
	return space, space.Start(ctx)
}
