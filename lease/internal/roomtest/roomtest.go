// Package roomtest makes the rooms that attempts stand on, for tests of attempts and of the rooms above them: leases, lanes and a store in
// memory that can be hindered.
package roomtest

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testing/clocktest"
	"github.com/locksidecar/locksidecar/lease/internal/background"
	"github.com/locksidecar/locksidecar/lease/internal/hearing"
	"github.com/locksidecar/locksidecar/lease/internal/heartbeat"
	"github.com/locksidecar/locksidecar/lease/internal/heldcache"
	"github.com/locksidecar/locksidecar/lease/internal/lanes"
	"github.com/locksidecar/locksidecar/lease/internal/observe"
	"github.com/locksidecar/locksidecar/lease/internal/readiness"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// LeaseTTL and StoreTimeout are configured.
const (
	LeaseTTL     = 15 * time.Second
	StoreTimeout = time.Second
)

// Clock is the clock of the bubble, and can jump ahead without its timers.
type Clock struct {
	clocktest.Bubble
	ahead atomic.Int64
}

// Now is the time of the bubble, and the jumps.
func (c *Clock) Now() time.Time { return time.Now().Add(time.Duration(c.ahead.Load())) }

// Stop makes the process stand still for a while, together with its timers.
func (c *Clock) Stop(d time.Duration) { c.ahead.Add(int64(d)) }

// Floor is what attempts stand on. Nothing renews the leases unless their Run is started.
type Floor struct {
	Ctx        context.Context // ends with the test
	Config     types.Config
	Clock      *Clock
	Store      store.Store
	Observer   *observe.Observer
	Lanes      *lanes.Set
	Leases     *heartbeat.Leases
	Needs      *hearing.Needs
	HeldCache  *heldcache.Cache
	Background *background.Runner
	Draining   chan struct{}
	Hear       func(store.News) // nil: nobody hears the store's news
}

// New makes the rooms on a store. Each is stopped at the end of the test.
func New(t *testing.T, st store.Store, users heartbeat.Users, change ...func(*types.Config)) *Floor {
	t.Helper()
	f := &Floor{Clock: &Clock{}, Store: st, Needs: hearing.New(st), Draining: make(chan struct{})}
	f.Config = types.Config{
		Instance: "a", Pod: "a", TTL: LeaseTTL, RenewInterval: LeaseTTL / 3, StoreTimeout: StoreTimeout, PollInterval: time.Second,
		CacheSize: 10, CacheTTL: 100 * time.Millisecond, BatchMax: 10, MaxSessions: 10, MaxLocksPerSession: 10, MaxWaiters: 10,
		Logger: slog.New(slog.DiscardHandler), Clock: f.Clock,
	}
	for _, c := range change {
		c(&f.Config)
	}
	ctx, cancel := context.WithCancel(context.Background())
	f.Ctx = ctx
	f.Background, f.Observer = background.New(ctx, f.Clock), observe.New(f.Config.Logger, nil, nil, st.Traits().Inline)
	f.Lanes = lanes.New(f.Config, st, f.Observer, readiness.New(f.Config, st), f.Draining)
	f.Leases = heartbeat.New(ctx, heartbeat.Config{
		TTL: f.Config.TTL, RenewInterval: f.Config.RenewInterval, StoreTimeout: StoreTimeout, Store: st, Lanes: f.Lanes, Clock: f.Clock,
		Log: f.Config.Logger, Observer: f.Observer, Background: f.Background, Users: users,
	})
	var err error
	if f.HeldCache, err = heldcache.New(f.Config.CacheSize, f.Config.CacheTTL, f.Clock); err != nil {
		t.Fatal(err)
	}
	hear := func(n store.News) {
		if f.Hear != nil {
			f.Hear(n)
		}
	}
	if err := st.Start(ctx, hear); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		f.Background.Hurry()
		f.Background.Join()
		ended, stop := context.WithCancel(context.Background())
		stop()
		f.Lanes.Acquires.Stop(ended)
		f.Lanes.Enqueues.Stop(ended)
		f.Lanes.Cancels.Stop(ended)
		f.Lanes.Withdrawals.Stop(ended)
		f.Lanes.Releases.Stop(ended)
		f.Lanes.Amends.Stop(ended)
		f.Lanes.Openings.Stop(ended)
		f.Lanes.Revocations.Stop(ended)
		st.Stop()
	})
	return f
}
