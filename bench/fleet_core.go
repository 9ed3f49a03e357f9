package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/internal/config"
	"github.com/locksidecar/locksidecar/internal/sidecar"
	"github.com/locksidecar/locksidecar/lease"
	"github.com/locksidecar/locksidecar/store"
)

// core is a sidecar without its HTTP: the store, the manager on it, and a session of one app.
type core struct {
	space store.Space // nil: others share it
	st    store.Store
	m     *lease.Manager
	app   *lease.Session
	// own is what the app holds.
	own lease.Grant
}

// place is where a sidecar keeps its locks. shared and beat, if they are not nil, are those of its process.
type place struct {
	url    string
	shared store.Space
	beat   *lease.Beat
}

func coreConfig(url, pod string, keep time.Duration) (config.Config, error) {
	cfg, _, err := config.Load(config.FromMap(map[string]string{
		"LOCKSIDECAR_STORE_URL": url, "LOCKSIDECAR_POD": pod, "LOCKSIDECAR_KEEP": keep.String(), "LOCKSIDECAR_SOCKET": "/nowhere",
	}))
	return cfg, err
}

func newSpace(cfg config.Config) (store.Space, error) {
	return sidecar.NewSpace(cfg, sidecar.SpaceOptions{Log: slog.New(slog.DiscardHandler)})
}

// startCore starts one that keeps released keys for a time, with the settings of a sidecar that is configured with nothing else.
func startCore(ctx context.Context, at place, n int, keep time.Duration, lost *atomic.Int64) (*core, error) {
	pod := fmt.Sprintf("pod-%d", n)
	cfg, err := coreConfig(at.url, pod, keep)
	if err != nil {
		return nil, err
	}
	silent := slog.New(slog.DiscardHandler)
	c := &core{}
	space := at.shared
	if space == nil {
		if space, err = newSpace(cfg); err != nil {
			return nil, err
		}
		if err := space.Start(ctx); err != nil {
			return nil, err
		}
		c.space = space
	}
	name := pod + "-" + strconv.FormatInt(time.Now().UnixNano(), 36)
	c.st = space.View(store.Identity{Namespace: cfg.Namespace, Instance: name, Pod: pod})
	if c.m, err = lease.New(lease.Config{
		Instance: name, Pod: pod, TTL: cfg.TTL, RenewInterval: cfg.RenewInterval,
		StoreTimeout: cfg.StoreTimeout, PollInterval: cfg.PollInterval, CacheSize: cfg.CacheSize, CacheTTL: cfg.CacheTTL, Keep: cfg.Keep,
		BatchMax: cfg.BatchMax, MaxSessions: cfg.MaxSessions, MaxLocksPerSession: cfg.MaxLocksPerSession, MaxWaiters: cfg.MaxWaiters,
		Probes: true, Logger: silent, Beat: at.beat,
	}, c.st); err != nil {
		return nil, err
	}
	if err := errors.Join(c.st.Start(ctx, c.m.News), c.m.Start(ctx)); err != nil {
		c.stop()
		return nil, err
	}
	c.app, err = c.m.OpenSession(lease.SessionOptions{Name: pod, OnLost: func(l lease.Lost) {
		if l.Reason != lease.LostShutdown {
			lost.Add(1)
		}
	}})
	for err == nil && c.m.Ready() != nil { // as the app's pod waits for it
		select {
		case <-time.After(readyLook):
		case <-ctx.Done():
			err = errors.Join(ctx.Err(), c.m.Ready())
		}
	}
	if err != nil {
		c.stop()
	}
	return c, err
}

// readyLook is the pause between two looks whether a sidecar is ready. These send nothing.
const readyLook = 20 * time.Millisecond

// another is the same sidecar with another app, which has a session of its own.
func (c *core) another(name string) (*core, error) {
	app, err := c.m.OpenSession(lease.SessionOptions{Name: name})
	return &core{st: c.st, m: c.m, app: app}, err
}

func (c *core) stop() {
	c.m.Drain()
	c.m.Stop()
	c.st.Stop()
	if c.space != nil {
		c.space.Stop()
	}
}

// takes acquires, and waits if it must.
func (c *core) takes(ctx context.Context, req lease.Request) (lease.Grant, error) {
	if req.Wait == 0 {
		req.Wait = lease.WaitForever
	}
	return c.m.Acquire(ctx, c.app, req)
}

func (c *core) gives(ctx context.Context, g lease.Grant) error {
	_, err := c.m.Release(ctx, c.app, lease.ReleaseRequest{Key: g.Key, Token: g.Token})
	return err
}

// pair acquires and releases.
func (c *core) pair(ctx context.Context, req lease.Request) (waited time.Duration, err error) {
	began := time.Now()
	g, err := c.takes(ctx, req)
	if err != nil {
		return 0, err
	}
	waited = time.Since(began)
	return waited, c.gives(ctx, g)
}

// outcome is what many did: the time of each, and errors.
type outcome struct {
	mu     sync.Mutex
	times  []float64 // ms
	errors map[string]int
}

func (o *outcome) note(took time.Duration, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err == nil {
		o.times = append(o.times, milliseconds(took))
		return
	}
	if o.errors == nil {
		o.errors = map[string]int{}
	}
	o.errors[addresses.ReplaceAllString(err.Error(), "…")]++
}

// addresses are what differs in the texts of one error: ports, folders, a user.
var addresses = regexp.MustCompile(`\S+:\d+->\S+:\d+|/tmp/\S+`)

func (o *outcome) failed() (n int) {
	for _, m := range o.errors {
		n += m
	}
	return n
}
