package sidecar

import (
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/internal/config"
	"github.com/locksidecar/locksidecar/internal/testing/clocktest"
	"github.com/locksidecar/locksidecar/lease"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/memory"
)

// An app that does not let go is waited for until the drain timeout, and no longer; one that
// does is waited for until then.
// Proves: promise 8
func TestTheDrainTimeoutIsKept(t *testing.T) {
	const limit = 25 * time.Second
	for name, letsGo := range map[string]time.Duration{"never lets go": limit, "lets go": limit / 2} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				st := memory.NewSpace().Open(store.Identity{Namespace: "test", Instance: "i", Pod: "p"})
				locks, err := lease.New(lease.Config{
					Instance: "i", Pod: "p", TTL: time.Hour, RenewInterval: 20 * time.Minute, StoreTimeout: 5 * time.Second,
					PollInterval: time.Second, BatchMax: 100, CacheSize: 10, MaxSessions: 10, MaxLocksPerSession: 10, MaxWaiters: 10,
					Logger: slog.New(slog.DiscardHandler), Clock: clocktest.Bubble{},
				}, st)
				if err != nil {
					t.Fatal(err)
				}
				if err := errors.Join(st.Start(t.Context(), locks.News), locks.Start(t.Context())); err != nil {
					t.Fatal(err)
				}
				defer st.Stop()
				defer locks.Stop()
				app, err := locks.OpenSession(lease.SessionOptions{})
				if err != nil {
					t.Fatal(err)
				}
				if _, err := locks.Acquire(t.Context(), app, lease.Request{Key: "k"}); err != nil {
					t.Fatal(err)
				}
				if letsGo < limit {
					time.AfterFunc(letsGo, func() { app.End(lease.EndDropped) })
				}
				locks.Drain()
				began := time.Now()
				s := &sidecar{Options: Options{Config: config.Config{DrainTimeout: limit}}, locks: locks, log: slog.New(slog.DiscardHandler)}
				s.awaitIdle(t.Context())
				if took := time.Since(began); took < letsGo || took > min(limit, letsGo+time.Second) {
					t.Errorf("it was waited for %s, want %s", took, letsGo)
				}
			})
		})
	}
}
