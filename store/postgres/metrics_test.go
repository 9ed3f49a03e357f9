package postgres_test

import (
	"context"
	"errors"
	"maps"
	"regexp"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/internal/metrics"
	"github.com/locksidecar/locksidecar/internal/testing/pgproxy"
	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/postgres"
)

// figures records the metrics of a store.
type figures struct {
	mu      sync.Mutex
	calls   map[string]int
	failed  map[string]error
	took    map[string]time.Duration // the longest
	batches map[string][]int
	state   func() metrics.StoreState
}

func (f *figures) Statement(_ context.Context, name string, took time.Duration, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls[name]++
	f.took[name] = max(f.took[name], took)
	if err != nil {
		f.failed[name] = err
	}
}

func (f *figures) Batch(operation string, items int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.batches[operation] = append(f.batches[operation], items)
}

func (f *figures) Observe(state func() metrics.StoreState) { f.state = state }

func (f *figures) reset() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls, f.failed = map[string]int{}, map[string]error{}
	f.took, f.batches = map[string]time.Duration{}, map[string][]int{}
}

// all returns how often each statement was counted.
func (f *figures) all() map[string]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.calls)
}

// measured starts a store and records its metrics.
func measured(t *testing.T, config postgres.Config) (*postgres.Store, *figures) {
	t.Helper()
	config.AutoMigrate = true
	f := &figures{}
	f.reset()
	s := only(t, config, store.Identity{Namespace: "n", Instance: uuid.NewString(), Pod: "p"}, postgres.Patient,
		func(s *postgres.Space) { postgres.Measure(s, f) })
	start(t, s, nil)
	return s, f
}

var marked = regexp.MustCompile(`^/\* locksidecar:(\w+) \*/`)

// executed returns how often the server has executed each statement of the store.
func executed(t *testing.T, url string) map[string]int {
	t.Helper()
	found := map[string]int{}
	texts := pgtest.Query[[]string](t, url, `
		SELECT coalesce(array_agg(s.query), '{}') FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid,
			generate_series(1, s.calls) WHERE d.datname = current_database() AND s.query LIKE '/* locksidecar:%'`)
	for _, text := range texts {
		found[marked.FindStringSubmatch(text)[1]]++
	}
	return found
}

// Each statement that the server has counted is measured.
func TestEveryStatementIsMeasured(t *testing.T) {
	t.Parallel()
	for name, listen := range map[string]postgres.Listen{"own sessions": postgres.ListenAuto, "shared sessions": postgres.ListenNever} {
		t.Run(name, func(t *testing.T) {
			url := cluster.NewDatabase(t)
			if _, _, err := postgres.Migrate(t.Context(), url); err != nil {
				t.Fatal(err)
			}
			s, f := measured(t, postgres.Config{URL: url, Listen: listen})
			for _, name := range []string{"schema_exists", "schema_version", "server", "connection_check"} {
				if f.all()[name] == 0 {
					t.Errorf("%s was not measured at the start", name)
				}
			}
			cluster.ResetStatements(t, url)
			f.reset()
			if listen == postgres.ListenAuto {
				s.Listen(true)
				poll(t, "it listens", func() bool { return !s.Traits().Polls })
			}
			useAll(t, s)
			counted := f.all()
			there := executed(t, url)
			delete(there, "connection_set_up") // it is also part of transactions, which are measured as their statements
			delete(counted, "connection_set_up")
			if !maps.Equal(counted, there) {
				t.Errorf("measured\n%v, executed\n%v", counted, there)
			}
			if len(counted) < 25 {
				t.Errorf("only %d statements were used: %v", len(counted), slices.Sorted(maps.Keys(counted)))
			}
			if len(f.failed) > 0 {
				t.Errorf("failed: %v", f.failed)
			}
		})
	}
}

// useAll uses most operations of a store.
func useAll(t *testing.T, s *postgres.Store) {
	t.Helper()
	ctx := t.Context()
	lease, other := openLease(t, s, time.Hour), openLease(t, s, time.Hour)
	one, two, wait := askFor("one", lease), askFor("two", other), askFor("one", lease)
	want(t, acquire(t, s, two), store.Granted)
	token := want(t, acquire(t, s, one), store.Granted).Token
	want(t, enqueue(t, s, wait), store.Queued)
	want(t, enqueue(t, s, askFor("two", lease)), store.Queued)
	want(t, check(t, s, wait), store.Queued)
	_, errStats := s.Stats(ctx)
	_, errElect := s.Elect(ctx, time.Minute)
	_, errRenew := s.Renew(ctx, []store.LeaseID{lease, uuid.New()})
	_, errSignal := s.Signal(ctx, []store.Signal{{Kind: store.Stop, Key: "one"}})
	_, errSignals := s.Signals(ctx, []store.LeaseID{lease})
	errHeard := s.Acknowledge(ctx, []store.SignalID{1})
	errWatch := s.Watch(ctx, []string{"one"}, lease)
	errUnwatch := s.Unwatch(ctx, []string{"one"})
	_, errAmend := s.Amend(ctx, []store.Change{{Key: "one", Token: token, Lease: lease}})
	_, errMany := s.Acquire(ctx, []store.Ask{askFor("a", lease), askFor("b", lease)})
	_, errList := s.List(ctx, store.Query{Limit: 10})
	release(t, s, store.Claim{Key: "one", Token: token, Lease: lease})
	_, errCancel := s.Cancel(ctx, []store.Attempt{wait.Attempt})
	errWithdraw := withdraw(ctx, s, wait.Attempt)
	third := want(t, acquire(t, s, askFor("three", lease)), store.Granted).Token
	release(t, s, store.Claim{Key: "three", Token: third, Lease: lease})
	if err := errors.Join(errStats, errElect, errRenew, errSignal, errSignals, errHeard, errWatch, errUnwatch, errAmend,
		errMany, errList, errCancel, errWithdraw, s.Revoke(ctx, []store.LeaseID{other}), s.ReapInstance(ctx, "nobody"), s.Sweep(ctx)); err != nil {
		t.Fatal(err)
	}
	poll(t, "all news to be sent", func() bool { return postgres.Silent(s) })
}

func TestFailedStatementsAreMeasured(t *testing.T) {
	t.Parallel()
	url := cluster.NewDatabase(t)
	s, f := measured(t, postgres.Config{URL: url})
	lease := openLease(t, s, time.Hour)
	token := want(t, acquire(t, s, askFor("k", lease)), store.Granted).Token
	conn := connect(t, url)
	exec(t, conn, "BEGIN")
	exec(t, conn, "SELECT FROM locksidecar.locks FOR UPDATE")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	failed := make(chan error, 1)
	go func() {
		_, err := s.Release(ctx, []store.Claim{{Key: "k", Token: token, Lease: lease}})
		failed <- err
	}()
	awaitBlocked(t, url)
	<-time.After(100 * time.Millisecond) // the statement has begun, and takes at least this time
	cancel()
	if err := <-failed; err == nil {
		t.Fatal("released although the row was locked")
	}
	exec(t, conn, "ROLLBACK")
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failed["release_one"] == nil || f.took["release_one"] < 100*time.Millisecond {
		t.Errorf("failed: %v, after %v", f.failed, f.took)
	}
}

func TestBatchesAreMeasured(t *testing.T) {
	t.Parallel()
	s, f := measured(t, postgres.Config{URL: cluster.NewDatabase(t)})
	lease := openLease(t, s, time.Hour)
	asks := []store.Ask{askFor("a", lease), askFor("b", lease), askFor("c", lease)}
	if _, err := s.Renew(t.Context(), []store.LeaseID{lease}); err != nil { // connects now, because a later connection would repeat releases
		t.Fatal(err)
	}
	answers, err := s.Acquire(t.Context(), asks)
	if err != nil {
		t.Fatal(err)
	}
	for i, a := range answers[:2] {
		release(t, s, store.Claim{Key: asks[i].Key, Token: a.Token, Lease: lease})
	}
	want(t, check(t, s, asks[2]), store.Granted)
	_, cancelled := s.Cancel(t.Context(), []store.Attempt{asks[0].Attempt, asks[1].Attempt})
	_, renewed := s.Renew(t.Context(), []store.LeaseID{lease})
	_, got := s.Get(t.Context(), []string{"a", "b"})
	_, none := s.Acquire(t.Context(), nil)
	if err := errors.Join(cancelled, renewed, got, none); err != nil {
		t.Fatal(err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for operation, sizes := range map[string][]int{
		"open": {1}, "acquire": {3}, "release": {1, 1}, "check": {1}, "cancel": {2}, "renew": {1, 1}, "get": {2},
	} {
		if !slices.Equal(f.batches[operation], sizes) {
			t.Errorf("%s: %v, want %v", operation, f.batches[operation], sizes)
		}
	}
	if len(f.batches) != 7 {
		t.Errorf("batches of %v", slices.Sorted(maps.Keys(f.batches)))
	}
}

func TestStateOfTheListener(t *testing.T) {
	t.Parallel()
	url := cluster.NewDatabase(t)
	proxy := pgproxy.Start(t, url)
	s, f := measured(t, postgres.Config{URL: proxy.URL()})
	if got := f.state().Listener; got != "off" {
		t.Errorf("%s without listening", got)
	}
	s.Listen(true)
	poll(t, "it listens", func() bool { return f.state().Listener == "listening" })
	proxy.Refuse(true) // so that the connecting state lasts long enough to be seen
	exec(t, connect(t, url), "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE '%LISTEN%' AND pid <> pg_backend_pid()")
	poll(t, "a new connection attempt", func() bool { return f.state().Listener == "connecting" })
	proxy.Refuse(false)
	poll(t, "it listens again", func() bool { return f.state().Listener == "listening" })
	s.Listen(false)
	poll(t, "it is off", func() bool { return f.state().Listener == "off" })

	never, f := measured(t, postgres.Config{URL: url, Listen: postgres.ListenNever})
	never.Listen(true)
	if got := f.state().Listener; got != "off" {
		t.Errorf("%s although it polls", got)
	}
	s.Stop()
	s.Space.Stop()
	never.Stop()
	never.Space.Stop()
	if got := f.state(); got != (metrics.StoreState{Listener: "off"}) {
		t.Errorf("after the stop: %+v", got)
	}
}

func TestStateOfThePools(t *testing.T) {
	t.Parallel()
	url := cluster.NewDatabase(t)
	s, f := measured(t, postgres.Config{URL: url, MaxConns: 3}) // 1 for renewals, 1 for LISTEN
	lease := openLease(t, s, time.Hour)
	if _, err := s.Renew(t.Context(), []store.LeaseID{lease}); err != nil {
		t.Fatal(err)
	}
	token := want(t, acquire(t, s, askFor("k", lease)), store.Granted).Token
	poll(t, "both pools have an idle connection", func() bool {
		state := f.state()
		return state.Max == 2 && state.Idle == 2 && state.Used == 0
	})
	before := f.state()

	conn := connect(t, url)
	exec(t, conn, "BEGIN")
	exec(t, conn, "SELECT FROM locksidecar.locks FOR UPDATE")
	var group sync.WaitGroup
	group.Go(func() { release(t, s, store.Claim{Key: "k", Token: token, Lease: lease}) })
	poll(t, "a connection is in use", func() bool { return f.state().Used == 1 && f.state().Idle == 1 })
	exec(t, conn, "ROLLBACK")
	group.Wait()
	poll(t, "statements wait for the only connection", func() bool {
		for range 8 {
			group.Go(func() { _, _ = s.Get(t.Context(), []string{"k"}) })
		}
		group.Wait()
		after := f.state()
		return after.Waited > before.Waited && after.WaitedFor > before.WaitedFor
	})
	if after := f.state(); after.Used != 0 || after.Max != 2 {
		t.Errorf("after all: %+v", after)
	}
}
