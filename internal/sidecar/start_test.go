package sidecar

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/exitcode"
	"github.com/locksidecar/locksidecar/lease"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/memory"
)

// brokenStore cannot start.
type brokenStore struct {
	store.Store

	stopped int
}

func (s *brokenStore) Start(context.Context, func(store.News)) error {
	return errors.New("of another age")
}

func (s *brokenStore) Stop() {
	s.stopped++
	s.Store.Stop()
}

// A store that cannot start is stopped, and so is the manager, which has not started.
func TestStartWithABrokenStore(t *testing.T) {
	st := &brokenStore{Store: memory.NewSpace().Open(store.Identity{Namespace: "test", Instance: "i", Pod: "p"})}
	locks, err := lease.New(lease.Config{
		Instance: "i", Pod: "p", TTL: time.Minute, RenewInterval: 20 * time.Second, StoreTimeout: 5 * time.Second,
		PollInterval: time.Second, BatchMax: 100, CacheSize: 10, MaxSessions: 10, MaxLocksPerSession: 10, MaxWaiters: 10,
		Logger: slog.New(slog.DiscardHandler),
	}, st)
	if err != nil {
		t.Fatal(err)
	}
	err = (&sidecar{space: memory.NewSpace(), store: st, locks: locks}).start(t.Context())
	if exitcode.Of(err) != exitcode.Config || !strings.Contains(err.Error(), "the store cannot work: of another age") {
		t.Errorf("got %v", err)
	}
	if st.stopped != 1 {
		t.Errorf("the store is stopped %d times", st.stopped)
	}
	select {
	case <-locks.Idle():
	case <-time.After(10 * time.Second):
		t.Error("the manager is not stopped")
	}
}
