package postgres_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
	"github.com/locksidecar/locksidecar/internal/testing/pgtest/pgroles"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/postgres"
)

// BenchmarkPair acquires and releases as many fresh keys as a batch has, on a server with default
// durability. "direct" does the same for one key with plain SQL, as an app without the sidecar
// would.
func BenchmarkPair(b *testing.B) {
	cluster := pgtest.Start(b, pgroles.Template())
	url := cluster.NewDatabase(b)
	s := startStore(b, url, store.Identity{Namespace: "bench", Instance: "i", Pod: "p"})
	lease := openLease(b, s, time.Hour)
	b.Run("direct", func(b *testing.B) { benchmarkDirect(b, url) })
	for _, n := range []int{1, 16, 64, 256, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) { benchmarkPair(b, s, lease, n) })
	}
}

// benchmarkPair sends an outcome with every second batch of releases. These batches wait for their
// flush.
func benchmarkPair(b *testing.B, s *postgres.Store, lease store.LeaseID, n int) {
	prefix := uuid.NewString()
	asks, claims := make([]store.Ask, n), make([]store.Claim, n)
	var took [2]time.Duration
	rounds := 0
	for ; b.Loop(); rounds++ {
		began := time.Now()
		for i := range asks {
			key := fmt.Sprintf("job:%s:%d:%d", prefix[:8], rounds, i)
			asks[i] = store.Ask{Attempt: store.Attempt{Key: key, ID: uuid.New()}, Lease: lease}
		}
		answers, err := s.Acquire(b.Context(), asks)
		if err != nil {
			b.Fatal(err)
		}
		outcome := []store.ReleaseOutcome{store.NoOutcome, store.Failure}[rounds%2]
		for i, a := range answers {
			claims[i] = store.Claim{Key: asks[i].Key, Token: a.Token, Lease: lease, Outcome: outcome}
		}
		if _, err := s.Release(b.Context(), claims); err != nil {
			b.Fatal(err)
		}
		took[rounds%2] += time.Since(began)
	}
	for i, unit := range []string{"µs/pair", "µs/pair-with-outcome"} {
		b.ReportMetric(float64(took[i].Microseconds())/float64(max(1, (rounds+1-i)/2)*n), unit)
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

// BenchmarkHandOff releases a lock to a waiter of another instance, and waits again behind the
// others. µs/release and similar values are the times of statements in the database, without the
// flush of the commit. Less is better.
func BenchmarkHandOff(b *testing.B) {
	for _, others := range []int{0, 30} {
		b.Run(fmt.Sprint(others), func(b *testing.B) {
			url := cluster.NewDatabase(b)
			h := newHandOffs(b, url, 2+others)
			cluster.ResetStatements(b, url)
			for b.Loop() {
				h.handOff()
			}
			for _, kind := range []string{"release_one", "release", "notify_grants", "ask"} {
				b.ReportMetric(pgtest.Query[float64](b, url, `
					SELECT coalesce(1000 * sum(total_exec_time) / $2, 0)::float8 FROM pg_stat_statements
					WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database()) AND starts_with(query, $1)`, "/* locksidecar:"+kind+" */", b.N), "µs/"+kind)
			}
		})
	}
}

// handOffs are two instances whose calls wait in turns for one key.
type handOffs struct {
	b      *testing.B
	stores [2]*postgres.Store
	leases [2]store.LeaseID
	line   []store.Ask // the first holds the lock
	turn   int         // the instance of the first
	token  int64
	news   chan store.News
}

func newHandOffs(b *testing.B, url string, calls int) *handOffs {
	h := &handOffs{b: b, news: make(chan store.News, 100)}
	for i := range h.stores {
		h.stores[i] = backend{tb: b, url: url}.open(store.Identity{Namespace: "bench", Instance: fmt.Sprint(i), Pod: "p"})
		b.Cleanup(h.stores[i].Stop)
		start(b, h.stores[i], func(n store.News) {
			if n.Answer.Outcome == store.Granted {
				h.news <- n
			}
		})
		h.leases[i] = openLease(b, h.stores[i], time.Hour)
		h.stores[i].Listen(true)
	}
	h.token = want(b, h.join(0), store.Granted).Token
	for i := 1; i < calls; i++ {
		want(b, h.join(i%2), store.Queued)
	}
	return h
}

// join adds a call of an instance to the queue.
func (h *handOffs) join(whose int) store.Answer {
	h.line = append(h.line, askFor("k", h.leases[whose]))
	return enqueue(h.b, h.stores[whose], h.line[len(h.line)-1])
}

// handOff releases the lock to the next in the queue. The former holder joins the queue again.
func (h *handOffs) handOff() {
	release(h.b, h.stores[h.turn], store.Claim{Key: "k", Token: h.token, Lease: h.leases[h.turn]})
	n := <-h.news
	if n.ID != h.line[1].ID {
		h.b.Fatal("another call was granted the lock")
	}
	h.token, h.line = n.Answer.Token, h.line[1:]
	want(h.b, h.join(h.turn), store.Queued)
	h.turn = 1 - h.turn
}
