package etcd_test

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/internal/testing/await"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/cas/castest"
)

// TestManyReadersOfManyInstances: a key with more instances than a transaction of etcd may have operations is handed on,
// and each of them is told. It is much work for the server, so no other test runs beside it.
func TestManyReadersOfManyInstances(t *testing.T) {
	const instances = 140
	space := castest.Spaces(t, on(t, cluster), 1)[0]
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	type reader struct {
		store.Store
		ask     store.Ask
		granted atomic.Int64
	}
	readers := make([]*reader, instances)
	get := func(r *reader, want store.Outcome) store.Answer {
		t.Helper()
		answers, err := r.Enqueue(ctx, []store.Ask{r.ask})
		if must(err); answers[0].Outcome != want {
			t.Fatalf("outcome %d, want %d", answers[0].Outcome, want)
		}
		return answers[0]
	}
	for i := range readers {
		r := &reader{Store: space.View(store.Identity{Namespace: "n", Instance: uuid.NewString()})}
		readers[i] = r
		t.Cleanup(r.Stop)
		must(r.Start(ctx, func(n store.News) {
			if n.ID == r.ask.ID && n.Answer.Outcome == store.Granted {
				r.granted.Store(n.Answer.Token)
			}
		}))
		r.ask = store.Ask{Attempt: store.Attempt{Key: "k", ID: uuid.New()}, Lease: uuid.New(), Shared: i > 0, Session: strings.Repeat("s", 20)}
		await.Until(t, "an instance is ready", func() bool { return r.Ready() == nil })
		must(r.OpenLeases(ctx, []store.NewLease{{ID: r.ask.Lease, TTL: time.Hour}}))
		get(r, map[bool]store.Outcome{true: store.Granted, false: store.Queued}[i == 0])
	}
	release := func(r *reader, token int64) {
		t.Helper()
		verdicts, err := r.Release(ctx, []store.Claim{{Key: "k", Token: token, Lease: r.ask.Lease}})
		if must(err); verdicts[0].Status != store.Holds {
			t.Fatalf("status %d", verdicts[0].Status)
		}
	}
	release(readers[0], get(readers[0], store.Granted).Token)
	last := int64(0)
	for i, r := range readers[1:] {
		await.Until(t, "an instance is told", func() bool { return r.granted.Load() != 0 })
		if token := get(r, store.Granted).Token; token != r.granted.Load() || token <= last {
			t.Fatalf("reader %d: token %d, told %d, after %d", i, token, r.granted.Load(), last)
		}
		last = r.granted.Load()
	}
	for _, r := range readers[1:] {
		release(r, r.granted.Load())
	}
}
