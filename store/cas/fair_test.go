package cas_test

import (
	"context"
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
