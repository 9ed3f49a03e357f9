package postgres_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/internal/testing/pace"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/postgres"
	"github.com/locksidecar/locksidecar/store/storetest"
)

// renewTogether lets renewals wait for each other for so long that those of about the same time share a statement on a busy machine, too.
func renewTogether(s *postgres.Space) { postgres.RenewTogether(s, 300*time.Millisecond) }

// inNamespace is the identity of the only instance of a namespace.
func inNamespace(name string) store.Identity {
	return store.Identity{Namespace: name, Instance: "instance-of-" + name + "-" + uuid.NewString(), Pod: "pod-" + name}
}

// view makes and starts a view.
func view(tb testing.TB, space store.Space, id store.Identity, news func(store.News)) *postgres.Store {
	tb.Helper()
	s := space.View(id).(*postgres.Store)
	start(tb, s, news)
	return s
}

// TestViewsConform: rules hold also between the views of one space, whose connections, listener and renewals they share.
func TestViewsConform(t *testing.T) {
	t.Parallel()
	storetest.RunTogether(t, storetest.In(spaces(t, 1, postgres.Config{URL: cluster.NewDatabase(t)})...))
}

// TestViewsShare: the views of a space need three connections, as one store does.
func TestViewsShare(t *testing.T) {
	t.Parallel()
	url := cluster.NewDatabase(t)
	migrate(t, url)
	f := &figures{}
	f.reset()
	space := startSpace(t, postgres.Config{URL: url, Failover: store.FailoverQuick, MaxConns: 3}, renewTogether,
		func(s *postgres.Space) { postgres.Measure(s, f) })
	const many = 20
	views, leases := make([]*postgres.Store, many), make([]store.LeaseID, many)
	for i := range views {
		views[i] = view(t, space, inNamespace(fmt.Sprint("n", i)), nil)
		views[i].Listen(true)
		leases[i] = openLease(t, views[i], time.Minute)
		want(t, acquire(t, views[i], askFor("k", leases[i])), store.Granted)
	}
	for i, v := range views {
		poll(t, fmt.Sprint("view ", i, " hears"), func() bool { return v.Traits().Hears })
	}
	watcher := connect(t, url)
	var conns int
	if err := watcher.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()").Scan(&conns); err != nil {
		t.Fatal(err)
	}
	if conns > 3 {
		t.Errorf("%d connections of %d views, want at most 3", conns, many)
	}
	// Renewals of about the same time are one statement.
	f.reset()
	var work sync.WaitGroup
	for i, v := range views {
		work.Go(func() {
			r, err := v.Renew(context.Background(), []store.LeaseID{leases[i]})
			if err != nil || len(r.Renewed) != 1 || r.Renewed[0] != leases[i] {
				t.Errorf("view %d: renewed %v, %v; want its own lease", i, r.Renewed, err)
			}
		})
	}
	work.Wait()
	if n := f.all()["lease_renew"]; n != 1 {
		t.Errorf("%d statements renewed the leases of %d views, want 1", n, many)
	}
	if !slices.Equal(f.batches["renew"], []int{many}) {
		t.Errorf("the renewals had %v leases, want %d", f.batches["renew"], many)
	}
}

// TestViewsDoNotMix: each view renews its own leases, whatever another one's are: dead, unknown, locked by another session, or with signals.
func TestViewsDoNotMix(t *testing.T) {
	t.Parallel()
	url := cluster.NewDatabase(t)
	migrate(t, url)
	space := startSpace(t, postgres.Config{URL: url, Failover: store.FailoverQuick}, renewTogether)
	names := []string{"fine", "dead", "locked", "signalled"}
	views, leases, tokens := map[string]*postgres.Store{}, map[string]store.LeaseID{}, map[string]int64{}
	for _, name := range names {
		views[name] = view(t, space, inNamespace(name), nil)
		leases[name] = openLease(t, views[name], time.Minute)
		tokens[name] = want(t, acquire(t, views[name], askFor("k", leases[name])), store.Granted).Token
	}
	if err := views["dead"].Revoke(t.Context(), []store.LeaseID{leases["dead"]}); err != nil {
		t.Fatal(err)
	}
	if _, err := views["signalled"].Signal(t.Context(), []store.Signal{{Kind: store.Stop, Key: "k", Token: tokens["signalled"]}}); err != nil {
		t.Fatal(err)
	}
	locker := connect(t, url)
	exec(t, locker, "BEGIN")
	exec(t, locker, "SELECT FROM locksidecar.leases WHERE id = $1 FOR UPDATE", leases["locked"])
	type renewed struct {
		store.Renewal
		err error
		at  time.Time
	}
	var mu sync.Mutex
	got := map[string]renewed{}
	var work sync.WaitGroup
	for _, name := range names {
		work.Go(func() {
			r, err := views[name].Renew(context.Background(), []store.LeaseID{leases[name]})
			mu.Lock()
			defer mu.Unlock()
			got[name] = renewed{r, err, time.Now()}
		})
	}
	work.Wait()
	for _, name := range names {
		r := got[name]
		lives, fails := name != "dead" && name != "locked", name == "locked"
		if (len(r.Renewed) == 1) != lives || (r.err != nil) != fails || r.Signals != (name == "signalled") {
			t.Errorf("%s: renewed %v, signals %v, %v", name, r.Renewed, r.Signals, r.err)
		}
	}
	if fine, locked := got["fine"].at, got["locked"].at; fine.After(locked) {
		t.Error("the renewal of a view waited for the locked row of another one")
	}
}

// TestAViewEnds: a view that is stopped takes nothing from another one, which holds, waits, hears and renews.
func TestAViewEnds(t *testing.T) {
	t.Parallel()
	url := cluster.NewDatabase(t)
	migrate(t, url)
	space := startSpace(t, postgres.Config{URL: url, Failover: store.FailoverQuick})
	heard := make(chan store.News, 100)
	a := view(t, space, inNamespace("a"), nil)
	b := view(t, space, inNamespace("b"), func(n store.News) { heard <- n })
	other := startStore(t, url, store.Identity{Namespace: "b", Instance: "elsewhere-" + uuid.NewString(), Pod: "elsewhere"})
	a.Listen(true)
	b.Listen(true)
	leaseA, leaseB, leaseOther := openLease(t, a, time.Minute), openLease(t, b, time.Minute), openLease(t, other, time.Minute)
	want(t, acquire(t, a, askFor("k", leaseA)), store.Granted)
	want(t, acquire(t, b, askFor("k", leaseB)), store.Granted)
	held := want(t, acquire(t, other, askFor("wanted", leaseOther)), store.Granted)
	waits := askFor("wanted", leaseB)
	want(t, enqueue(t, b, waits), store.Queued)
	poll(t, "both hear", func() bool { return a.Traits().Hears && b.Traits().Hears })

	a.Stop()
	if a.Ready() == nil || a.Traits().Hears {
		t.Error("a stopped view is ready, or hears")
	}
	if _, err := a.Renew(t.Context(), []store.LeaseID{leaseA}); !store.Unavailable(err) || store.OutcomeUnknown(err) {
		t.Errorf("a renewal by a stopped view: %v", err)
	}
	if err := b.Ready(); err != nil {
		t.Errorf("the other view is not ready: %v", err)
	}
	if r, err := b.Renew(t.Context(), []store.LeaseID{leaseB}); err != nil || len(r.Renewed) != 1 {
		t.Errorf("the other view renewed %v, %v", r.Renewed, err)
	}
	release(t, other, store.Claim{Key: "wanted", Token: held.Token, Lease: leaseOther})
	await(t, heard, func(n store.News) bool { return n.ID == waits.ID && n.Answer.Outcome == store.Granted })
	if !b.Traits().Hears {
		t.Error("the other view does not hear any more")
	}
	// A view that begins later shares the connection that is there.
	c := view(t, space, inNamespace("c"), nil)
	c.Listen(true)
	poll(t, "a later view hears", func() bool { return c.Traits().Hears })
	c.Listen(false)
	poll(t, "it is deaf when it needs nothing", func() bool { return !c.Traits().Hears })
	if !b.Traits().Hears {
		t.Error("the other view does not hear any more")
	}
}

// await reads news until one is right.
func await(tb testing.TB, heard <-chan store.News, right func(store.News) bool) {
	tb.Helper()
	limit := time.After(patience)
	for {
		select {
		case n := <-heard:
			if right(n) {
				return
			}
		case <-limit:
			tb.Fatal("the news did not come")
		}
	}
}

// TestNewsReachTheRightView: two views have attempts for the same key name in two namespaces, and each hears of its own only.
func TestNewsReachTheRightView(t *testing.T) {
	t.Parallel()
	url := cluster.NewDatabase(t)
	migrate(t, url)
	space := startSpace(t, postgres.Config{URL: url, Failover: store.FailoverQuick})
	type side struct {
		view, holder *postgres.Store
		lease        store.LeaseID
		held         store.Answer
		holds        store.LeaseID
		waits        store.Ask
		heard        chan store.News
	}
	sides := map[string]*side{"a": {}, "b": {}}
	for name, s := range sides {
		s.heard = make(chan store.News, 100)
		s.view = view(t, space, inNamespace(name), func(n store.News) { s.heard <- n })
		s.holder = startStore(t, url, store.Identity{Namespace: name, Instance: "holder-" + uuid.NewString(), Pod: "holder"})
		s.view.Listen(true)
		s.lease, s.holds = openLease(t, s.view, time.Minute), openLease(t, s.holder, time.Minute)
		s.held = want(t, acquire(t, s.holder, askFor("k", s.holds)), store.Granted)
		s.waits = askFor("k", s.lease)
		want(t, enqueue(t, s.view, s.waits), store.Queued)
		if err := s.view.Watch(t.Context(), []string{"k"}, s.lease); err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range sides {
		poll(t, "it hears", func() bool { return s.view.Traits().Hears })
	}
	for name, s := range sides {
		release(t, s.holder, store.Claim{Key: "k", Token: s.held.Token, Lease: s.holds})
		await(t, s.heard, func(n store.News) bool { return n.ID == s.waits.ID && n.Answer.Outcome == store.Granted })
		await(t, s.heard, func(n store.News) bool {
			return n.Event != nil && n.Event.Kind == store.EventReleased && n.Event.Token == s.held.Token
		})
		for other, o := range sides {
			if other == name {
				continue
			}
			for len(o.heard) > 0 {
				if n := <-o.heard; n.ID == s.waits.ID || n.Event != nil && n.Event.Token == s.held.Token {
					t.Errorf("the view in %s heard what is of %s: %+v", other, name, n)
				}
			}
		}
		delete(sides, name)
	}
}

// TestAFloodOfAViewLetsOthersRenew: a view whose calls use all main connections does not delay the renewals of another one.
func TestAFloodOfAViewLetsOthersRenew(t *testing.T) {
	t.Parallel()
	machine := pace.Start(t)
	url := cluster.NewDatabase(t)
	migrate(t, url)
	space := startSpace(t, postgres.Config{URL: url, Failover: store.FailoverQuick, MaxConns: 3, Timeout: 10 * time.Second}, postgres.Patient)
	noisy, quiet := view(t, space, inNamespace("noisy"), nil), view(t, space, inNamespace("quiet"), nil)
	leaseNoisy, leaseQuiet := openLease(t, noisy, time.Minute), openLease(t, quiet, time.Minute)
	want(t, acquire(t, noisy, askFor("k", leaseNoisy)), store.Granted)
	locker := connect(t, url)
	exec(t, locker, "BEGIN")
	exec(t, locker, "SELECT FROM locksidecar.locks WHERE namespace = 'noisy' FOR UPDATE")
	flooded, end := context.WithCancel(context.Background())
	var work sync.WaitGroup
	for range 10 {
		work.Go(func() { _, _ = noisy.Enqueue(flooded, []store.Ask{askFor("k", leaseNoisy)}) })
	}
	admin := connect(t, url)
	poll(t, "the flood waits for the row", func() bool {
		var waits int
		err := admin.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'").Scan(&waits)
		return err == nil && waits > 0
	})
	began := time.Now()
	r, err := quiet.Renew(t.Context(), []store.LeaseID{leaseQuiet})
	if took, slow := time.Since(began), machine.Since(began); err != nil || len(r.Renewed) != 1 || took > time.Second+slow {
		t.Errorf("the quiet view renewed %v in %s, on a machine that was %s slow: %v", r.Renewed, took, slow, err)
	}
	end()
	exec(t, locker, "ROLLBACK")
	work.Wait()
}

// TestAFloodOfAViewDelaysOthersByAStatement: while many calls of a view wait for the only main connection, one of another view waits for the statement
// that runs, and not for those that came before it. The calls of a view that wait end with their ctx, and take no connection from the others.
// Proves: threat flood
func TestAFloodOfAViewDelaysOthersByAStatement(t *testing.T) {
	t.Parallel()
	url := cluster.NewDatabase(t)
	migrate(t, url)
	order := &statements{}
	space := startSpace(t, postgres.Config{URL: url, Failover: store.FailoverQuick, MaxConns: 3, Timeout: 10 * time.Second}, postgres.Patient,
		func(s *postgres.Space) { postgres.Measure(s, order) })
	noisy, quiet := view(t, space, inNamespace("noisy"), nil), view(t, space, inNamespace("quiet"), nil)
	leaseNoisy, leaseQuiet := openLease(t, noisy, time.Minute), openLease(t, quiet, time.Minute)
	locker := connect(t, url)
	exec(t, locker, "BEGIN")
	exec(t, locker, "LOCK TABLE locksidecar.signals IN ACCESS EXCLUSIVE MODE")
	const many = 10
	flooded, end := context.WithCancel(t.Context())
	var work sync.WaitGroup
	for range many {
		work.Go(func() {
			for flooded.Err() == nil {
				_, _ = noisy.Signals(flooded, []store.LeaseID{leaseNoisy})
			}
		})
	}
	poll(t, "the flood waits for a connection", func() bool { return postgres.WaitForAPlace(noisy) == many-1 })
	granted := make(chan store.Answer, 1)
	work.Go(func() { granted <- acquire(t, quiet, askFor("k", leaseQuiet)) })
	poll(t, "the other view waits, too", func() bool { return postgres.WaitForAPlace(quiet) == 1 })
	order.forget()
	exec(t, locker, "ROLLBACK")
	want(t, <-granted, store.Granted)
	end()
	if n := order.before("signals_of", "acquire", 1); n > 2 { // one ran, and one was next
		t.Errorf("%d statements of the flood went before that of another view, want at most 2", n)
	}
	work.Wait()
	if n := postgres.WaitForAPlace(noisy); n != 0 {
		t.Errorf("%d calls wait still", n)
	}
	want(t, acquire(t, quiet, askFor("l", leaseQuiet)), store.Granted)
}

// TestAFloodOfAViewLetsLockedLeasesBeRenewed: a view floods the only main connection, and another session keeps the leases of two views locked. Their renewals
// wait for a turn beside the calls, and not behind those of the flood. So neither the flooding view nor the other one loses its lease.
// Proves: threat flood
func TestAFloodOfAViewLetsLockedLeasesBeRenewed(t *testing.T) {
	t.Parallel()
	url := cluster.NewDatabase(t)
	migrate(t, url)
	order := &statements{}
	space := startSpace(t, postgres.Config{URL: url, Failover: store.FailoverQuick, MaxConns: 3, Timeout: 10 * time.Second}, postgres.Patient,
		func(s *postgres.Space) { postgres.Measure(s, order) })
	noisy, quiet := view(t, space, inNamespace("noisy"), nil), view(t, space, inNamespace("quiet"), nil)
	leaseNoisy, leaseQuiet := openLease(t, noisy, time.Minute), openLease(t, quiet, time.Minute)
	calls, leases := connect(t, url), connect(t, url)
	exec(t, calls, "BEGIN")
	exec(t, calls, "LOCK TABLE locksidecar.waiters IN ACCESS EXCLUSIVE MODE")
	const many = 20
	flooded, end := context.WithCancel(t.Context())
	var work sync.WaitGroup
	for range many {
		work.Go(func() {
			for flooded.Err() == nil {
				_, _ = noisy.Waiting(flooded, store.WaitQuery{})
			}
		})
	}
	poll(t, "the flood waits for a connection", func() bool { return postgres.WaitForAPlace(noisy) == many-1 })
	exec(t, leases, "BEGIN")
	exec(t, leases, "SELECT FROM locksidecar.leases FOR UPDATE")
	var renewals sync.WaitGroup
	renew := func(v *postgres.Store, lease store.LeaseID, waiting int) {
		renewals.Go(func() {
			if r, err := v.Renew(t.Context(), []store.LeaseID{lease}); err != nil || len(r.Renewed) != 1 {
				t.Errorf("renewed %v, %v", r.Renewed, err)
			}
		})
		poll(t, "the renewal waits for a connection", func() bool { return postgres.WaitForAPlace(v) == waiting })
	}
	renew(noisy, leaseNoisy, many)
	renew(quiet, leaseQuiet, 1)
	order.forget()
	exec(t, leases, "ROLLBACK")
	exec(t, calls, "ROLLBACK")
	renewals.Wait()
	end()
	// One statement of the flood ran, and it has a turn before, between and behind the renewals.
	if n := order.before("waiting", "lease_renew_one", 2); n > 3 {
		t.Errorf("%d statements of the flood went before the renewals, want at most 3", n)
	}
	work.Wait()
}

// statements notes statements in the order of their ends.
type statements struct {
	figures

	mu    sync.Mutex
	names []string
}

func (s *statements) Statement(_ context.Context, name string, _ time.Duration, _ error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.names = append(s.names, name)
}

func (*statements) Batch(string, int) {}

func (s *statements) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.names = nil
}

// before is how many with this name came before the nth one whose name begins with the other.
func (s *statements) before(name, other string, nth int) (count int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range s.names {
		if n == name {
			count++
		} else if strings.HasPrefix(n, other) {
			if nth--; nth == 0 {
				return count
			}
		}
	}
	return count
}

// TestAViewEndsWithCallsThatWait: a view that is stopped while its calls wait for a connection waits for them, and leaves no place taken.
func TestAViewEndsWithCallsThatWait(t *testing.T) {
	t.Parallel()
	url := cluster.NewDatabase(t)
	migrate(t, url)
	space := startSpace(t, postgres.Config{URL: url, Failover: store.FailoverQuick, MaxConns: 3, Timeout: time.Second})
	ends, other := view(t, space, inNamespace("ends"), nil), view(t, space, inNamespace("other"), nil)
	leaseEnds, leaseOther := openLease(t, ends, time.Minute), openLease(t, other, time.Minute)
	locker := connect(t, url)
	exec(t, locker, "BEGIN")
	exec(t, locker, "LOCK TABLE locksidecar.signals IN ACCESS EXCLUSIVE MODE")
	const many = 5
	results := make(chan error, many)
	for range many {
		go func() {
			_, err := ends.Signals(context.Background(), []store.LeaseID{leaseEnds})
			results <- err
		}()
	}
	poll(t, "its calls wait", func() bool { return postgres.WaitForAPlace(ends) == many-1 })
	ends.Stop()
	if n := postgres.WaitForAPlace(ends); n > 0 {
		t.Errorf("%d calls wait at the end of the view", n)
	}
	poll(t, "its calls have returned", func() bool { return len(results) == many }) // their goroutines may be a moment behind
	exec(t, locker, "ROLLBACK")
	poll(t, "another view gets the connection", func() bool {
		answers, err := other.Acquire(t.Context(), []store.Ask{askFor("k", leaseOther)})
		return err == nil && answers[0].Outcome == store.Granted
	})
}

// TestAViewEndsDuringARenewal: its renewal in a shared statement gets an answer or an error, and the statement goes on for the others.
func TestAViewEndsDuringARenewal(t *testing.T) {
	t.Parallel()
	url := cluster.NewDatabase(t)
	migrate(t, url)
	space := startSpace(t, postgres.Config{URL: url, Failover: store.FailoverQuick}, renewTogether)
	a, b := view(t, space, inNamespace("a"), nil), view(t, space, inNamespace("b"), nil)
	leaseA, leaseB := openLease(t, a, time.Minute), openLease(t, b, time.Minute)
	hurry, leave := context.WithCancel(t.Context())
	var work sync.WaitGroup
	work.Go(func() {
		if _, err := a.Renew(hurry, []store.LeaseID{leaseA}); !store.Unavailable(err) {
			t.Errorf("a renewal that its caller has left: %v", err)
		}
	})
	work.Go(func() {
		if r, err := b.Renew(context.Background(), []store.LeaseID{leaseB}); err != nil || len(r.Renewed) != 1 {
			t.Errorf("the other view renewed %v, %v", r.Renewed, err)
		}
	})
	work.Go(func() {
		leave()
		a.Stop()
	})
	work.Wait()
}

// TestAFailoverConcernsAllViews: a server that was promoted has missed the last renewals of all views. Whichever of them begins the new history,
// all leases live on, and each view is told to verify its own.
//
// Proves: promise 2
func TestAFailoverConcernsAllViews(t *testing.T) {
	t.Parallel()
	url := cluster.NewDatabase(t)
	migrate(t, url)
	space := startSpace(t, postgres.Config{URL: url, Failover: store.FailoverQuick}, renewTogether)
	const many = 8
	views, leases := make([]*postgres.Store, many), make([]store.LeaseID, many)
	for i := range views {
		views[i] = view(t, space, inNamespace(fmt.Sprint("n", i)), nil)
		leases[i] = openLease(t, views[i], time.Minute)
		want(t, acquire(t, views[i], askFor("k", leases[i])), store.Granted)
	}
	exec(t, connect(t, url), "UPDATE locksidecar.meta SET server = 'another'; UPDATE locksidecar.leases SET expires_at = clock_timestamp() - interval '1 min'")
	histories := make([]store.History, many)
	var work sync.WaitGroup
	for i, v := range views {
		work.Go(func() {
			r, err := v.Renew(context.Background(), []store.LeaseID{leases[i]})
			if err != nil || len(r.Renewed) != 1 || len(r.Reconcile) != 1 {
				t.Errorf("view %d: renewed %v, to be verified %v, %v", i, r.Renewed, r.Reconcile, err)
			}
			histories[i] = r.History
			held, err := v.HeldUnder(context.Background(), []string{"k"})
			if err != nil || len(held.Grants) != 1 || held.Grants[0].Lease != leases[i] {
				t.Errorf("view %d holds %v, %v; want its own lock", i, held.Grants, err)
			}
		})
	}
	work.Wait()
	if len(slices.Compact(histories)) != 1 {
		t.Errorf("the views see the histories %v", histories)
	}
}
