package lease_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/internal/testing/clocktest"
	"github.com/locksidecar/locksidecar/lease"
	"github.com/locksidecar/locksidecar/lease/internal/attempt"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/cas"
	"github.com/locksidecar/locksidecar/store/cas/fake"
)

const (
	// others is how many sidecars try to get the key. They come for storms times, for stormLasts, and each of them tries every tryEach: together a thousand times
	// a second.
	others, storms      = 20, 5
	stormLasts, tryEach = time.Second, others * time.Millisecond
	// calm is for how long the app is alone before each storm.
	calm = time.Second
	// hop is how long a message travels. appHolds and tryHolds are for how long the app and the others hold the key, appRests is the app's pause.
	hop, appHolds, appRests, tryHolds = 500 * time.Microsecond, 2 * time.Millisecond, 2 * time.Millisecond, 30 * time.Millisecond
)

// TestManyTriesFromManySidecars: an app uses a key again and again, and its sidecar keeps the key. Now and then twenty other sidecars try to get it, a thousand
// times a second. No two have the key at a time, each try is answered soon, and neither the app nor the others starve. All of that costs about what it costs
// without kept keys.
// Proves: promise 1, promise 3, trap recall
func TestManyTriesFromManySidecars(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plain, keeps := &crowd{T: t}, &crowd{T: t, keep: 200 * time.Millisecond}
		for _, c := range []*crowd{plain, keeps} {
			c.run()
			t.Logf("keep %s: %d requests in the storms; %d tries, %d granted, the longest in vain %s; %d turns of the app, the longest wait %s; kept before %d storms",
				c.keep, c.cost, c.tries, c.granted, c.refused, c.turns, c.waited, c.kept)
			if c.granted < storms || c.waited > 4*tryHolds {
				t.Errorf("keep %s: somebody starves", c.keep)
			}
			if c.refused >= attempt.RecallWait {
				t.Errorf("keep %s: a try was refused after %s", c.keep, c.refused)
			}
		}
		if keeps.kept < storms || plain.kept > 0 {
			t.Errorf("the key was kept before %d of %d storms, and without KEEP before %d", keeps.kept, storms, plain.kept)
		}
		if limit := plain.cost * 11 / 10; keeps.cost > limit {
			t.Errorf("%d requests, want at most %d", keeps.cost, limit)
		}
	})
}

// crowd is an app with its sidecar, and the others.
type crowd struct {
	*testing.T
	keep     time.Duration
	server   *fake.Server
	requests atomic.Int64 // of all sidecars
	cost     int64        // those of the storms
	kept     int          // before how many storms the app's sidecar kept the key

	mu             sync.Mutex
	holder         string
	last           int64
	turns          int           // of the app
	waited         time.Duration // for the longest of them
	tries, granted int
	refused        time.Duration // how long the longest try in vain took
}

func (c *crowd) run() {
	c.server = fake.NewServer()
	app := c.pod("app")
	over := make(chan struct{})
	var working sync.WaitGroup
	working.Go(func() {
		for ; !types.Closed(over); time.Sleep(appRests) {
			c.turn(app)
		}
	})
	var pods []*pod
	for i := range others {
		pods = append(pods, c.pod(fmt.Sprint("other-", i)))
	}
	for range storms {
		time.Sleep(calm)
		before := c.requests.Load()
		time.Sleep(3 * (appHolds + appRests))
		if c.requests.Load() == before {
			c.kept++
		}
		c.storm(pods)
		c.cost += c.requests.Load() - before
	}
	close(over)
	working.Wait()
}

// storm lets each pod try again and again, one a millisecond after the other, also while an earlier try of it runs.
func (c *crowd) storm(pods []*pod) {
	var tries sync.WaitGroup
	for i, p := range pods {
		tries.Go(func() {
			time.Sleep(time.Duration(i) * tryEach / others)
			for range stormLasts / tryEach {
				tries.Go(func() { c.try(p) })
				time.Sleep(tryEach)
			}
		})
	}
	tries.Wait()
}

// turn gets the key for the app, however long it waits.
func (c *crowd) turn(app *pod) {
	began := time.Now()
	g, err := app.acquire(time.Hour)
	if err != nil {
		c.Errorf("the app: %v", err)
		return
	}
	c.mu.Lock()
	c.turns++
	c.waited = max(c.waited, time.Since(began))
	c.mu.Unlock()
	time.Sleep(appHolds)
	app.release(g)
}

// try asks for the key without a wait.
func (c *crowd) try(p *pod) {
	began := time.Now()
	g, err := p.acquire(0)
	c.mu.Lock()
	c.tries++
	switch _, held := errors.AsType[*lease.HeldError](err); {
	case held:
		c.refused = max(c.refused, time.Since(began))
	case err != nil:
		c.Errorf("%s: %v", p.name, err)
	default:
		c.granted++
	}
	c.mu.Unlock()
	if err == nil {
		time.Sleep(tryHolds)
		p.release(g)
	}
}

// has notes who has the key; empty: nobody any more.
func (c *crowd) has(name string, token int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case name == "":
	case c.holder != "":
		c.Errorf("%s and %s have the key", c.holder, name)
	case token <= c.last:
		c.Errorf("%s: token %d after %d", name, token, c.last)
	}
	c.holder, c.last = name, token
}

// pod is a sidecar with a session.
type pod struct {
	*crowd
	name string
	m    *lease.Manager
	s    *lease.Session
}

func (c *crowd) pod(name string) *pod {
	c.Helper()
	faults := fake.Faults{
		Request: func(string) fake.Fault {
			c.requests.Add(1)
			return fake.Fault{Slow: hop, SlowAnswer: hop}
		},
		Letter: func() fake.LetterFault { return fake.LetterFault{Slow: hop} },
	}
	st := cas.NewSpace(fake.Only(c.server.Open(name, faults)), cas.Config{}).View(store.Identity{Namespace: "n", Instance: name, Pod: name}).(*cas.Store)
	m, err := lease.New(lease.Config{
		Instance: name, Pod: name, TTL: time.Hour, RenewInterval: time.Hour, Keep: c.keep,
		StoreTimeout: 5 * time.Second, PollInterval: time.Second, CacheSize: 100,
		BatchMax: 100, MaxSessions: 100, MaxLocksPerSession: 1000, MaxWaiters: 1000, Logger: slog.New(slog.DiscardHandler), Clock: clocktest.Bubble{},
	}, st)
	if err = errors.Join(err, st.Start(c.Context(), m.News), m.Start(c.Context())); err != nil {
		c.Fatal(err)
	}
	c.Cleanup(func() { m.Stop(); st.Stop() })
	s, err := m.OpenSession(lease.SessionOptions{Explicit: true})
	if err != nil {
		c.Fatal(err)
	}
	return &pod{c, name, m, s}
}

func (p *pod) acquire(wait time.Duration) (lease.Grant, error) {
	g, err := p.m.Acquire(context.Background(), p.s, lease.Request{Key: "k", Wait: wait})
	if err == nil {
		p.has(p.name, g.Token)
	}
	return g, err
}

func (p *pod) release(g lease.Grant) {
	p.has("", g.Token)
	if _, err := p.m.Release(context.Background(), p.s, lease.ReleaseRequest{Key: g.Key, Token: g.Token}); err != nil {
		p.Errorf("%s: %v", p.name, err)
	}
}
