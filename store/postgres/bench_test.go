package postgres_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/internal/pgtest"
	"github.com/locksidecar/locksidecar/store"
)

// BenchmarkPair is an acquire and a release of as many fresh keys as one batch
// has, on a server with its default durability. "direct" is what an app without
// us would do with one key.
func BenchmarkPair(b *testing.B) {
	cluster := pgtest.Start(b)
	url := cluster.NewDatabase(b)
	s := startStore(b, url, store.Identity{Namespace: "bench", Instance: "i", Pod: "p"})
	lease := openLease(b, s, time.Hour)
	b.Run("direct", func(b *testing.B) { benchmarkDirect(b, url) })
	for _, n := range []int{1, 16, 64, 256, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			prefix := uuid.NewString()
			asks, claims := make([]store.Ask, n), make([]store.Claim, n)
			for round := 0; b.Loop(); round++ {
				for i := range asks {
					key := fmt.Sprintf("job:%s:%d:%d", prefix[:8], round, i)
					asks[i] = store.Ask{Attempt: store.Attempt{Key: key, Grant: uuid.New()}, Lease: lease}
				}
				answers, err := s.Acquire(b.Context(), asks)
				if err != nil {
					b.Fatal(err)
				}
				for i, a := range answers {
					claims[i] = store.Claim{Key: asks[i].Key, Token: a.Token, Lease: lease}
				}
				if _, err := s.Release(b.Context(), claims); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*n), "µs/pair")
		})
	}
}

func benchmarkDirect(b *testing.B, url string) {
	conn := connect(b, url)
	exec(b, conn, `CREATE TABLE direct (key text PRIMARY KEY, owner text, expires_at timestamptz)`)
	for b.Loop() {
		key := uuid.NewString()
		exec(b, conn, `INSERT INTO direct VALUES ($1, 'me', now() + interval '15 s')
			ON CONFLICT (key) DO UPDATE SET owner = 'me', expires_at = excluded.expires_at WHERE direct.expires_at < now()`, key)
		exec(b, conn, `DELETE FROM direct WHERE key = $1 AND owner = 'me'`, key)
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N), "µs/pair")
}
