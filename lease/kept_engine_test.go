package lease_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/locksidecar/locksidecar/internal/testing/clocktest"
	"github.com/locksidecar/locksidecar/lease"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/cas"
	"github.com/locksidecar/locksidecar/store/cas/fake"
)

// TestKeptKeysUnderFaults lets apps of three sidecars, which keep keys, use a few keys of the compare-and-swap engine, most of them mostly behind
// one sidecar. Requests are lost, late and slow, recalls are slow or lost, a sidecar is deaf for a while, or cut off for longer than its lease lasts. No two apps have a key at a time, tokens
// grow, and each app gets its turns.
// Proves: promise 1, promise 3, promise 9, trap kept key, trap recall
func TestKeptKeysUnderFaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		takes := 0
		rapid.Check(struct{ rapid.TB }{t}, func(t *rapid.T) {
			k := newKeptWorld(rapid.Uint64().Draw(t, "seed"))
			k.run(t)
			takes += k.grants - k.swaps
		})
		if takes <= 0 {
			t.Error("the apps got no key without a statement")
		}
	})
}

const keptSidecars = 3

// keptWorld is one run. Its random numbers are not in the order of the seed, because many goroutines draw them.
type keptWorld struct {
	server *fake.Server
	calm   atomic.Bool
	deaf   [keptSidecars]atomic.Bool
	cut    [keptSidecars]atomic.Bool

	mu     sync.Mutex
	random *rand.Rand
	began  time.Time
	story  []string
	wrong  []string
	held   map[string]int64 // by key: the token under which an app believes to have it
	last   map[string]int64 // the greatest token of each key
	lost   map[int64]bool
	// grants counts those to apps, swaps those of the store.
	grants, swaps int
}

func newKeptWorld(seed uint64) *keptWorld {
	k := &keptWorld{
		server: fake.NewServer(), random: rand.New(rand.NewPCG(seed, 7)), began: time.Now(),
		held: map[string]int64{}, last: map[string]int64{}, lost: map[int64]bool{},
	}
	k.server.Swapped = func(was, is cas.Record, _ func(store.LeaseID) bool) {
		if before, after := holderOf(was), holderOf(is); after > before {
			k.mu.Lock()
			defer k.mu.Unlock()
			k.swaps++
		}
	}
	return k
}

// holderOf is the token of a record's holder.
func holderOf(r cas.Record) int64 {
	if r.Version == 0 {
		return 0
	}
	rec, err := cas.Decode(&r)
	if err != nil {
		return 0
	}
	return rec.Holder.Token
}

func (k *keptWorld) below(n int) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.random.IntN(n)
}

func (k *keptWorld) chance(percent int) bool { return k.below(100) < percent }

func (k *keptWorld) upTo(d time.Duration) time.Duration {
	return time.Duration(k.below(int(d/time.Microsecond))+1) * time.Microsecond
}

func (k *keptWorld) faults(pod int) fake.Faults {
	return fake.Faults{
		Deaf: func() bool { return k.deaf[pod].Load() },
		Request: func(string) fake.Fault {
			slow := fake.Fault{Slow: k.upTo(time.Millisecond), SlowAnswer: k.upTo(time.Millisecond)}
			switch {
			case k.calm.Load():
				return slow
			case k.cut[pod].Load():
				return fake.Fault{Refused: true}
			}
			switch n := k.below(1000); {
			case n < 10:
				return fake.Fault{Lost: true, Late: -1}
			case n < 20:
				return fake.Fault{Lost: true}
			case n < 35:
				return fake.Fault{Lost: true, Late: k.upTo(3 * time.Second)}
			case n < 45:
				return fake.Fault{Refused: true}
			case n < 100:
				return fake.Fault{Slow: k.upTo(300 * time.Millisecond), SlowAnswer: k.upTo(300 * time.Millisecond)}
			default:
				return slow
			}
		},
		Letter: func() fake.LetterFault {
			if k.calm.Load() {
				return fake.LetterFault{}
			}
			return fake.LetterFault{Lost: k.cut[pod].Load() || k.chance(5), Told: k.upTo(time.Second), Slow: k.upTo(5 * time.Millisecond)}
		},
	}
}

func (k *keptWorld) notef(format string, args ...any) {
	k.story = append(k.story, fmt.Sprintf("%12s ", time.Since(k.began).Round(time.Microsecond))+fmt.Sprintf(format, args...))
}

func (k *keptWorld) wrongf(format string, args ...any) {
	k.notef("WRONG: "+format, args...)
	k.wrong = append(k.wrong, fmt.Sprintf(format, args...))
}

// told notes that an app got a key.
func (k *keptWorld) told(pod int, g *lease.Grant) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.grants++
	k.notef("%d got %s under %d", pod, g.Key, g.Token)
	if g.Token <= k.last[g.Key] {
		k.wrongf("%s: token %d after %d", g.Key, g.Token, k.last[g.Key])
	}
	k.last[g.Key] = max(k.last[g.Key], g.Token)
	if k.lost[g.Token] {
		return
	}
	if other := k.held[g.Key]; other != 0 {
		k.wrongf("%s is held under %d and %d", g.Key, other, g.Token)
	}
	k.held[g.Key] = g.Token
}

// ends notes that an app has no key any more.
func (k *keptWorld) ends(key string, token int64, why string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.notef("%s under %d: %s", key, token, why)
	k.lost[token] = true
	if k.held[key] == token {
		delete(k.held, key)
	}
}

func (k *keptWorld) run(t *rapid.T) {
	var apps sync.WaitGroup
	var managers []*lease.Manager
	var engines []*cas.Store
	for pod := range keptSidecars {
		name := fmt.Sprint("pod-", pod)
		st := cas.NewSpace(fake.Only(k.server.Open(name, k.faults(pod))), cas.Config{}).View(store.Identity{Namespace: "n", Instance: name, Pod: name}).(*cas.Store)
		m, err := lease.New(lease.Config{
			Instance: name, Pod: name, TTL: 15 * time.Second, RenewInterval: 3 * time.Second, Keep: 200 * time.Millisecond,
			StoreTimeout: 2 * time.Second, PollInterval: time.Second, CacheSize: 100, CacheTTL: 100 * time.Millisecond,
			BatchMax: 100, MaxSessions: 100, MaxLocksPerSession: 1000, MaxWaiters: 1000, Logger: slog.New(slog.DiscardHandler), Clock: clocktest.Bubble{},
		}, st)
		if err = errors.Join(err, st.Start(context.Background(), m.News), m.Start(context.Background())); err != nil {
			t.Fatal(err)
		}
		managers, engines = append(managers, m), append(engines, st)
		for range 2 {
			apps.Go(func() { k.app(t, m, pod) })
		}
	}
	finished := make(chan struct{})
	go func() { apps.Wait(); close(finished) }()
	deafness := time.NewTicker(3 * time.Second)
	for over := false; !over; {
		select {
		case <-finished:
			over = true
		case <-deafness.C:
			pod := k.below(keptSidecars)
			k.deaf[pod].Store(!k.deaf[pod].Load() && k.chance(50))
			if k.chance(10) && !k.cut[pod].Swap(true) {
				time.AfterFunc(20*time.Second, func() { k.cut[pod].Store(false) })
			}
		case <-time.After(30 * time.Minute):
			t.Fatalf("apps are stuck:\n%s", strings.Join(k.story, "\n"))
		}
	}
	deafness.Stop()
	k.calm.Store(true)
	for i, m := range managers {
		m.Stop()
		engines[i].Stop()
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.wrong) > 0 {
		t.Fatalf("%q\n%s", k.wrong, strings.Join(k.story, "\n"))
	}
}

// app is one app behind a sidecar: it gets keys and gives them back.
func (k *keptWorld) app(t *rapid.T, m *lease.Manager, pod int) {
	s, err := m.OpenSession(lease.SessionOptions{Explicit: true, OnLost: func(l lease.Lost) { k.ends(l.Key, l.Token, "lost") }})
	if err != nil {
		t.Error(err)
		return
	}
	defer s.End(lease.EndDropped)
	for turn := 0; turn < 40; {
		if k.chance(20) {
			time.Sleep(k.upTo(400 * time.Millisecond))
		}
		req := lease.Request{Key: fmt.Sprint("own-", pod), Wait: time.Hour, NoCache: k.chance(50)}
		switch n := k.below(100); {
		case n < 8:
			req.Key = fmt.Sprint("own-", k.below(keptSidecars))
		case n < 12:
			req.Key = "all"
		}
		if k.chance(20) {
			req.Wait = 0
		}
		g, err := m.Acquire(context.Background(), s, req)
		if err != nil {
			time.Sleep(k.upTo(50 * time.Millisecond))
			if _, held := errors.AsType[*lease.HeldError](err); held {
				turn += k.below(2)
			}
			continue
		}
		turn++
		k.told(pod, &g)
		if k.chance(50) {
			time.Sleep(k.upTo(150 * time.Millisecond))
		}
		switch n := k.below(100); {
		case n < 5:
			_, _ = m.Amend(context.Background(), s, lease.AmendRequest{Key: g.Key, Token: g.Token, SetData: true, Data: []byte("1")})
		case n < 8:
			_ = m.AskToStop(context.Background(), req.Key, 0, nil)
		case n < 11:
			_, _ = m.Get(context.Background(), s, fmt.Sprint("own-", k.below(keptSidecars)), true)
		}
		k.ends(g.Key, g.Token, "released")
		_, _ = m.Release(context.Background(), s, lease.ReleaseRequest{Key: g.Key, Token: g.Token})
	}
}
