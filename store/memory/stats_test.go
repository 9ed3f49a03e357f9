package memory_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/memory"
)

// statsOf starts an instance in virtual time that holds keys for this time, and returns its stats.
func statsOf(t *testing.T, heldFor time.Duration, keys []string) (found store.Stats) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := memory.NewSpace().Open(store.Identity{Namespace: "n", Instance: "i", Pod: "p"})
		defer s.Stop()
		lease := uuid.New()
		if err := s.Start(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		if err := s.OpenLeases(t.Context(), []store.NewLease{{ID: lease, TTL: 2 * heldFor}}); err != nil {
			t.Fatal(err)
		}
		for _, key := range keys {
			acquire(t, s, store.Ask{Attempt: store.Attempt{Key: key, ID: uuid.New()}, Lease: lease})
		}
		time.Sleep(heldFor)
		var err error
		if found, err = s.Stats(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
	return found
}

func TestStatsHaveAnEnd(t *testing.T) {
	keys := []string{"many:1", "many:2"}
	for i := range store.StatLines + 6 {
		keys = append(keys, fmt.Sprintf("type%d:", i))
	}
	found := statsOf(t, time.Hour, keys)
	if len(found.Types) != store.StatLines+1 || len(found.Pods) != 1 {
		t.Fatalf("%d types and %d pods", len(found.Types), len(found.Pods))
	}
	first, last := found.Types[0], found.Types[store.StatLines]
	if want := (store.Stat{Namespace: "n", Name: "many", Held: 2, Average: time.Hour, Longest: time.Hour}); first != want {
		t.Errorf("first %+v, want %+v", first, want)
	}
	if want := (store.Stat{Name: store.Others, Held: 7, Average: time.Hour, Longest: time.Hour}); last != want {
		t.Errorf("last %+v, want %+v", last, want)
	}
	if all := found.Pods[0]; all.Name != "p" || all.Held != store.StatLines+8 {
		t.Errorf("the pod: %+v", all)
	}
}

func TestStatsOfVeryLongHolds(t *testing.T) {
	const years = 365 * 24 * time.Hour
	found := statsOf(t, 120*years, []string{"a:1", "a:2", "a:3"})
	if got := found.Types[0]; got.Average < 119*years || got.Average > 121*years || got.Longest != 120*years {
		t.Errorf("got %+v", got)
	}
}
