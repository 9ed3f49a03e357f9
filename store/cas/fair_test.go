package cas_test

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/cas"
	"github.com/locksidecar/locksidecar/store/cas/fake"
)

// oneConnection is a server whose views share a connection.
type oneConnection struct{ cas.Server }

func (oneConnection) Connections() int { return 1 }

func (oneConnection) Patience() time.Duration { return time.Minute }

// TestAFloodOfAViewWaitsForItsTurn: while many requests of a view wait for the only connection, one of another view waits for the request that is
// carried out and for one more of the flood, and not for those that came before it. Requests that give up leave no place taken.
// Proves: threat flood
func TestAFloodOfAViewWaitsForItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const far, many = time.Second, 20
		var slow atomic.Int64
		faults := fake.Faults{Request: func(string) fake.Fault { return fake.Fault{Slow: time.Duration(slow.Load())} }}
		space := cas.NewSpace(oneConnection{fake.NewServer().Process(faults)}, cas.Config{})
		leases := map[store.Store]store.LeaseID{}
		view := func(name string) store.Store {
			s := space.View(store.Identity{Namespace: "n", Instance: name})
			if err := s.Start(t.Context(), nil); err != nil {
				t.Fatal(err)
			}
			leases[s] = uuid.New()
			if err := s.OpenLeases(t.Context(), []store.NewLease{{ID: leases[s], TTL: time.Hour}}); err != nil {
				t.Fatal(err)
			}
			return s
		}
		noisy, quiet := view("noisy"), view("quiet")
		slow.Store(int64(far))
		flooded, end := context.WithCancel(t.Context())
		var work sync.WaitGroup
		for range many {
			work.Go(func() { _, _ = noisy.Get(flooded, []string{"other"}) })
		}
		synctest.Wait()
		began := time.Now()
		answers, err := quiet.Acquire(t.Context(), []store.Ask{{Attempt: store.Attempt{Key: "k", ID: uuid.New()}, Lease: leases[quiet]}})
		if err != nil || answers[0].Outcome != store.Granted {
			t.Fatalf("%+v, %v", answers, err)
		}
		if took := time.Since(began); took > 3*far { // the rest of a request, another one, and its own
			t.Errorf("a request of another view took %s, want at most %s", took, 3*far)
		}
		end()
		work.Wait()
		slow.Store(0)
		if _, err := quiet.Get(t.Context(), []string{"k"}); err != nil {
			t.Error(err)
		}
		noisy.Stop()
		quiet.Stop()
	})
}

// few is a server with few connections, whose requests it counts. If gate is set, the start of a view's backend is told to starts, and waits for gate.
type few struct {
	cas.Server
	connections int
	patience    time.Duration
	starts      chan string
	gate        chan struct{}

	mu                   sync.Mutex
	now, most, confirmed int
	rooms                []bool // what a Swap of several parts was given
}

func (f *few) Connections() int        { return f.connections }
func (f *few) Patience() time.Duration { return f.patience }

func (f *few) View(instance string) cas.Backend { return &counted{f.Server.View(instance), f} }

// counted is the backend of a view of few. Reads show what the server may forget.
type counted struct {
	cas.Backend
	few *few
}

func (c *counted) Start(ctx context.Context, deliver func(cas.Letter), lost func()) error {
	if c.few.gate != nil {
		c.few.starts <- "a view"
		<-c.few.gate
	}
	return c.Backend.Start(ctx, deliver, lost)
}

func (c *counted) during(do func()) {
	f := c.few
	f.mu.Lock()
	f.now++
	f.most = max(f.most, f.now)
	f.mu.Unlock()
	time.Sleep(time.Millisecond)
	do()
	f.mu.Lock()
	f.now--
	f.mu.Unlock()
}

func (c *counted) Load(ctx context.Context, keys []string, leases []store.LeaseID) (records []cas.Record, states []cas.LeaseState, err error) {
	c.during(func() { records, states, err = c.Backend.Load(ctx, keys, leases) })
	return records, states, err
}

func (c *counted) SwapInParts(ctx context.Context, swaps []cas.Swap, another func() (func(), bool)) (done []cas.Swapped, err error) {
	var leaves []func()
	c.few.rooms = nil
	for range c.few.connections {
		leave, free := another()
		c.few.rooms = append(c.few.rooms, free)
		if free {
			leaves = append(leaves, leave)
		}
	}
	c.during(func() { done, err = c.Backend.Swap(ctx, swaps) })
	for _, leave := range leaves {
		leave()
	}
	return done, err
}

func (c *counted) Confirm(context.Context) error {
	c.during(func() {
		c.few.mu.Lock()
		c.few.confirmed++
		c.few.mu.Unlock()
	})
	return nil
}

func asked(key string, lease store.LeaseID) store.Ask {
	return store.Ask{Attempt: store.Attempt{Key: key, ID: uuid.New()}, Lease: lease}
}

func opened(t *testing.T, s store.Store) store.LeaseID {
	t.Helper()
	if err := s.Start(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	lease := uuid.New()
	if err := s.OpenLeases(t.Context(), []store.NewLease{{ID: lease, TTL: time.Hour}}); err != nil {
		t.Fatal(err)
	}
	return lease
}

// TestEachRequestHasAConnection: views have no more requests under way than there are connections, also if the server must confirm what it has shown.
// Proves: threat flood
func TestEachRequestHasAConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &few{Server: fake.NewServer().Process(fake.Faults{}), connections: 1, patience: time.Minute}
		space := cas.NewSpace(server, cas.Config{})
		var work sync.WaitGroup
		for _, name := range []string{"a", "b"} {
			s := space.View(store.Identity{Namespace: "n", Instance: name})
			ask := asked("of "+name, opened(t, s))
			t.Cleanup(s.Stop)
			for range 5 { // a repeat relies on what it reads
				work.Go(func() {
					answers, err := s.Acquire(t.Context(), []store.Ask{ask})
					if err != nil || answers[0].Outcome != store.Granted {
						t.Errorf("%+v, %v", answers, err)
					}
				})
			}
		}
		work.Wait()
		if server.most > 1 || server.confirmed == 0 {
			t.Errorf("%d requests at a time on one connection, %d confirmed", server.most, server.confirmed)
		}
	})
}

// TestASwapTakesFreeConnectionsOnly: a Swap of several requests sends one beside another only as far as connections are free, and gives them back.
func TestASwapTakesFreeConnectionsOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &few{Server: fake.NewServer().Process(fake.Faults{}), connections: 3, patience: time.Minute}
		s := cas.NewSpace(server, cas.Config{}).View(store.Identity{Namespace: "n", Instance: "a"})
		lease := opened(t, s)
		defer s.Stop()
		for range 2 {
			if _, err := s.Acquire(t.Context(), []store.Ask{asked(uuid.NewString(), lease)}); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(server.rooms, []bool{true, true, false}) {
				t.Errorf("of 3 connections a Swap has one and was given %v", server.rooms)
			}
		}
	})
}

// TestAFloodingViewAsksForWay: the letters of a view that ask for way wait for a turn, and not behind the view's own requests.
func TestAFloodingViewAsksForWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const far = time.Second
		var slow atomic.Int64
		faults := fake.Faults{Request: func(string) fake.Fault { return fake.Fault{Slow: time.Duration(slow.Load())} }}
		s := cas.NewSpace(oneConnection{fake.NewServer().Process(faults)}, cas.Config{}).View(store.Identity{Namespace: "n", Instance: "a"})
		opened(t, s)
		slow.Store(int64(far))
		var work sync.WaitGroup
		for range 10 {
			work.Go(func() { _, _ = s.Get(t.Context(), []string{"k"}) })
		}
		synctest.Wait()
		began := time.Now()
		err := cas.Post(t.Context(), s.(*cas.Store), []cas.Letter{{To: "b", Key: "k"}})
		if took := time.Since(began); err != nil || took > 3*far {
			t.Errorf("the letter was sent after %s, %v", took, err)
		}
		work.Wait()
		slow.Store(0)
		s.Stop()
	})
}

// TestNobodyWaitsForAConnectionForEver: a request waits for a connection for the server's time, also if its caller has set no limit.
func TestNobodyWaitsForAConnectionForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var slow atomic.Int64
		faults := fake.Faults{Request: func(string) fake.Fault { return fake.Fault{Slow: time.Duration(slow.Load())} }}
		s := cas.NewSpace(oneConnection{fake.NewServer().Process(faults)}, cas.Config{}).View(store.Identity{Namespace: "n", Instance: "a"})
		opened(t, s)
		slow.Store(int64(time.Hour))
		var work sync.WaitGroup
		work.Go(func() { _, _ = s.Get(t.Context(), []string{"k"}) })
		synctest.Wait()
		began := time.Now()
		_, err := s.Get(context.Background(), []string{"k"})
		if took := time.Since(began); took != time.Minute || !store.Unavailable(err) || store.OutcomeUnknown(err) {
			t.Errorf("after %s: %v", took, err)
		}
		work.Wait()
		slow.Store(0)
		s.Stop()
	})
}

// TestAStopDuringTheStart: a view that is stopped while it starts leaves nothing: another one of its instance can start.
func TestAStopDuringTheStart(t *testing.T) {
	server := &few{Server: fake.NewServer().Process(fake.Faults{}), connections: 1, patience: time.Minute, starts: make(chan string, 2), gate: make(chan struct{})}
	space := cas.NewSpace(server, cas.Config{})
	id := store.Identity{Namespace: "n", Instance: "a"}
	first := space.View(id)
	var work sync.WaitGroup
	work.Go(func() { _ = first.Start(t.Context(), nil) })
	<-server.starts
	work.Go(first.Stop)
	for range 1000 {
		runtime.Gosched() // Stop may come before the end of Start, if it does not wait for that
	}
	close(server.gate)
	work.Wait()
	second := space.View(id)
	if err := second.Start(t.Context(), nil); err != nil {
		t.Error(err)
	}
	second.Stop()
}
