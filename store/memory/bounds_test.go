package memory

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/store"
)

// sizes are the numbers of items that a namespace keeps.
type sizes struct{ rows, visited, leases, waiting int }

func (ns *namespace) sizes() (n sizes) {
	for i := range ns.shards {
		n.rows += len(ns.shards[i].rows)
		n.visited += len(ns.shards[i].visited)
		for _, r := range ns.shards[i].rows {
			n.waiting += r.Queued()
		}
	}
	for i := range ns.leases.parts {
		n.leases += len(ns.leases.parts[i].byID)
	}
	return n
}

// Repeated operations on one key leave nothing behind, even without sweeps.
func TestSameKeyNeedsNoMore(t *testing.T) {
	ctx := t.Context()
	s := NewSpace().Open(store.Identity{})
	if err := s.Start(ctx, nil); err != nil {
		t.Fatal(err)
	}
	lease := uuid.New()
	if err := s.OpenLeases(ctx, []store.NewLease{{ID: lease, TTL: time.Hour}}); err != nil {
		t.Fatal(err)
	}
	ask := func(ttl time.Duration) store.Ask {
		return store.Ask{Attempt: store.Attempt{Key: "k", ID: uuid.New()}, Lease: lease, TTL: ttl}
	}
	for i := range 1000 {
		holder := ask([]time.Duration{0, time.Minute, 1}[i%3])
		waiters := []store.Ask{ask(0), ask(time.Minute), ask(0)}
		if _, err := s.Acquire(ctx, []store.Ask{holder}); err != nil {
			t.Fatal(err)
		}
		for _, w := range waiters {
			if _, err := s.Enqueue(ctx, []store.Ask{w}); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := s.Cancel(ctx, []store.Attempt{waiters[2].Attempt}); err != nil {
			t.Fatal(err)
		}
		attempts := []store.Attempt{waiters[2].Attempt, holder.Attempt, waiters[0].Attempt, waiters[1].Attempt}
		for _, a := range attempts {
			if _, err := s.Withdraw(ctx, []store.Attempt{a}); err != nil {
				t.Fatal(err)
			}
		}
		if got, want := s.ns.sizes(), (sizes{rows: 1, leases: 1}); got != want {
			t.Fatalf("after %d rounds: %+v, want %+v", i+1, got, want)
		}
	}
}

// A sweep frees everything, also the leases of an instance that died.
func TestSweepGivesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		s := NewSpace().Open(store.Identity{})
		if err := s.Start(ctx, nil); err != nil {
			t.Fatal(err)
		}
		lease := uuid.New()
		if err := s.OpenLeases(ctx, []store.NewLease{{ID: lease, TTL: time.Second}}); err != nil {
			t.Fatal(err)
		}
		for i := range 100 { // every second ask waits
			ask := store.Ask{Attempt: store.Attempt{Key: fmt.Sprint(i / 2), ID: uuid.New()}, Lease: lease}
			if i%4 == 0 {
				ask.TTL = time.Second
			}
			if _, err := s.Enqueue(ctx, []store.Ask{ask}); err != nil {
				t.Fatal(err)
			}
		}
		for _, want := range []sizes{{rows: 50}, {rows: 50}, {}} {
			time.Sleep(forgetAfter/2 + time.Second) // virtual
			if err := s.Sweep(ctx); err != nil {
				t.Fatal(err)
			}
			if got := s.ns.sizes(); got != want {
				t.Fatalf("kept %+v, want %+v", got, want)
			}
		}
	})
}
