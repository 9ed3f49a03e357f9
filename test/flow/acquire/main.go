// Command acquire runs one flow of package lease between two readings of the coverage counters: see package flow. It
// is built with -cover, and writes what the flow has run to GOCOVERDIR.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime/coverage"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/lease"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/memory"
)

func main() {
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run runs the flow once before it is measured, so that the lease is open and nothing is done for the first time.
func run(flow string) error {
	ctx := context.Background()
	space := memory.NewSpace()
	st := space.Open(store.Identity{Namespace: "flow", Instance: "pod/1", Pod: "pod"})
	m, err := lease.New(lease.Config{
		Instance: "pod/1", Pod: "pod", TTL: time.Hour, RenewInterval: time.Hour / 3, StoreTimeout: time.Minute, PollInterval: time.Minute,
		CacheSize: 100, CacheTTL: time.Second, BatchMax: 100, MaxSessions: 10, MaxLocksPerSession: 10, MaxWaiters: 10,
		Logger: slog.New(slog.DiscardHandler), Clock: steady{},
	}, st)
	if err != nil {
		return err
	}
	other := &neighbour{Store: space.Open(store.Identity{Namespace: "flow", Instance: "other/1", Pod: "other"}), lease: uuid.New()}
	if err := errors.Join(st.Start(ctx, m.News), m.Start(ctx), other.Start(ctx, nil)); err != nil {
		return err
	}
	if err := other.OpenLeases(ctx, []store.NewLease{{ID: other.lease, TTL: time.Hour}}); err != nil {
		return err
	}
	for _, key := range []string{"before", "measured"} {
		s, err := m.OpenSession(lease.SessionOptions{})
		if err != nil {
			return err
		}
		if flow == "waiting" {
			err = waiting(ctx, m, s, other, key)
		} else {
			err = free(ctx, m, s, key)
		}
		if err != nil {
			return err
		}
	}
	return nil // the counters are written at the exit
}

func free(ctx context.Context, m *lease.Manager, s *lease.Session, key string) error {
	if err := coverage.ClearCounters(); err != nil {
		return err
	}
	_, err := m.Acquire(ctx, s, lease.Request{Key: key})
	return err
}

// waiting acquires a key of another pod, which releases it when the call is in the queue.
func waiting(ctx context.Context, m *lease.Manager, s *lease.Session, other *neighbour, key string) error {
	token, err := other.take(ctx, key)
	if err != nil {
		return err
	}
	if err := coverage.ClearCounters(); err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() {
		_, err := m.Acquire(ctx, s, lease.Request{Key: key, Wait: lease.WaitForever})
		done <- err
	}()
	for queued := false; !queued; {
		locks, err := other.Get(ctx, []string{key})
		if err != nil {
			return err
		}
		queued = locks[0].QueueLength > 0
	}
	if _, err := other.Release(ctx, []store.Claim{{Key: key, Token: token, Lease: other.lease}}); err != nil {
		return err
	}
	return <-done
}

// steady is a clock that needs no look at the suspensions of the machine, which take place now and then.
type steady struct{}

func (steady) Now() time.Time                    { return time.Now() }
func (steady) Suspended(time.Time) time.Duration { return 0 }

// neighbour is a pod that uses the store without a [lease.Manager], so that what it does is not measured.
type neighbour struct {
	*memory.Store
	lease store.LeaseID
}

func (n *neighbour) take(ctx context.Context, key string) (token int64, err error) {
	answers, err := n.Acquire(ctx, []store.Ask{{Attempt: store.Attempt{Key: key, ID: uuid.New()}, Lease: n.lease, Session: "s"}})
	if err != nil {
		return 0, err
	}
	return answers[0].Token, nil
}
