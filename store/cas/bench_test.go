package cas_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/cas"
	"github.com/locksidecar/locksidecar/store/cas/fake"
)

// BenchmarkPairs acquires and releases keys on a server without cost, so it shows the engine's own cost.
func BenchmarkPairs(b *testing.B) {
	for _, size := range []int{1, 64} {
		b.Run(fmt.Sprintf("batch=%d", size), func(b *testing.B) {
			id := store.Identity{Namespace: "n", Instance: "a"}
			s := cas.NewSpace(fake.Only(fake.NewServer().Open("a", fake.Faults{})), cas.Config{}).View(id).(*cas.Store)
			if err := s.Start(b.Context(), nil); err != nil {
				b.Fatal(err)
			}
			defer s.Stop()
			lease := uuid.New()
			if err := s.OpenLeases(b.Context(), []store.NewLease{{ID: lease, TTL: time.Hour}}); err != nil {
				b.Fatal(err)
			}
			asks, claims := make([]store.Ask, size), make([]store.Claim, size)
			b.ReportAllocs()
			for b.Loop() {
				for i := range asks {
					asks[i] = store.Ask{Attempt: store.Attempt{Key: fmt.Sprint("job:", i), ID: uuid.New()}, Lease: lease}
				}
				answers, err := s.Acquire(b.Context(), asks)
				if err != nil {
					b.Fatal(err)
				}
				for i, a := range answers {
					claims[i] = store.Claim{Key: asks[i].Key, Token: a.Token, Lease: lease}
				}
				verdicts, err := s.Release(b.Context(), claims)
				if err != nil || verdicts[0].Status != store.Holds {
					b.Fatal(verdicts, err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*size), "ns/pair")
		})
	}
}
