package lease_test

import (
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/internal/testing/clocktest"
	"github.com/locksidecar/locksidecar/lease"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/cas"
	"github.com/locksidecar/locksidecar/store/cas/fake"
)

// sidecar starts a manager on the compare-and-swap engine.
func sidecar(t *testing.T, server *fake.Server, name string) *lease.Manager {
	t.Helper()
	space := cas.NewSpace(fake.Only(server.Open(name, fake.Faults{})), cas.Config{LongestQueue: 2})
	st := space.View(store.Identity{Namespace: "test", Instance: name, Pod: "pod-" + name})
	m, err := lease.New(lease.Config{
		Instance: name, Pod: "pod-" + name, TTL: 15 * time.Second, RenewInterval: 5 * time.Second,
		StoreTimeout: 5 * time.Second, PollInterval: time.Second, CacheSize: 100, CacheTTL: 100 * time.Millisecond,
		BatchMax: 100, MaxSessions: 100, MaxLocksPerSession: 1000, MaxWaiters: 1000, Logger: slog.New(slog.DiscardHandler), Clock: clocktest.Bubble{},
	}, st)
	for _, err := range []error{err, st.Start(t.Context(), m.News), m.Start(t.Context())} {
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { m.Stop(); st.Stop() })
	return m
}

// TestManagerOnAnEngineWithoutMover: calls wait across two sidecars of an engine that forgets nothing, a full queue is
// a limit, and what a stopped sidecar held is handed on.
func TestManagerOnAnEngineWithoutMover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := fake.NewServer()
		a, b := sidecar(t, server, "a"), sidecar(t, server, "b")
		ask := func(m *lease.Manager, wait time.Duration) (lease.Grant, error) {
			s, err := m.OpenSession(lease.SessionOptions{Explicit: true})
			if err != nil {
				t.Fatal(err)
			}
			return m.Acquire(t.Context(), s, lease.Request{Key: "k", Wait: wait})
		}
		first, err := ask(a, 0)
		if err != nil {
			t.Fatal(err)
		}
		var waiting sync.WaitGroup
		grants := make([]lease.Grant, 2)
		for i := range grants {
			waiting.Go(func() {
				var err error
				if grants[i], err = ask(b, time.Hour); err != nil && i == 0 {
					t.Errorf("a wait: %v", err)
				}
			})
			synctest.Wait()
		}
		_, err = ask(b, time.Hour)
		if limit, ok := errors.AsType[*lease.LimitError](err); !ok || limit.Limit != 2 || !strings.Contains(err.Error(), "waiters of this key") {
			t.Errorf("a third wait: %v", err)
		}
		began := time.Now()
		a.Stop() // revokes its lease
		synctest.Wait()
		if grants[0].Token <= first.Token || time.Since(began) > time.Second {
			t.Errorf("after %v: token %d after %d", time.Since(began), grants[0].Token, first.Token)
		}
		b.Drain() // ends the second wait
		waiting.Wait()
	})
}
