package memory_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/memory"
)

// open starts an instance with a renewed lease.
func open(tb testing.TB, space *memory.Space, name string) (*memory.Store, store.LeaseID) {
	tb.Helper()
	s := space.Open(store.Identity{Namespace: "default", Instance: name, Pod: "pod-" + name})
	if err := s.Start(context.Background(), nil); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(s.Stop)
	lease := uuid.New()
	err := s.OpenLeases(context.Background(), []store.NewLease{{ID: lease, TTL: time.Hour}})
	if err != nil {
		tb.Fatal(err)
	}
	return s, lease
}

func ask(key string, lease store.LeaseID) store.Ask {
	return store.Ask{Attempt: store.Attempt{Key: key, ID: uuid.New()}, Lease: lease}
}

// pair acquires and releases one key.
func pair(ctx context.Context, s *memory.Store, asks []store.Ask, claims []store.Claim) error {
	answers, err := s.Acquire(ctx, asks)
	if err != nil || answers[0].Outcome != store.Granted {
		return fmt.Errorf("got %+v, %w", answers, err)
	}
	claims[0] = store.Claim{Key: asks[0].Key, Token: answers[0].Token, Lease: asks[0].Lease}
	verdicts, err := s.Release(ctx, claims)
	if err != nil || verdicts[0].Status != store.Holds {
		return fmt.Errorf("got %+v, %w", verdicts, err)
	}
	return nil
}

func BenchmarkAcquireRelease(b *testing.B) {
	s, lease := open(b, memory.NewSpace(), "a")
	ctx := context.Background()
	asks, claims := []store.Ask{ask("workflow:123", lease)}, make([]store.Claim, 1)
	b.ReportAllocs()
	for b.Loop() {
		if err := pair(ctx, s, asks, claims); err != nil {
			b.Fatal(err)
		}
	}
}

// Acquires of different keys under one lease, on all processors, must not wait for each other.
func BenchmarkAcquireReleaseParallel(b *testing.B) {
	s, lease := open(b, memory.NewSpace(), "a")
	ctx := context.Background()
	var worker atomic.Int64
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		n := worker.Add(1)
		asks, claims := make([]store.Ask, 256), make([]store.Claim, 1)
		for i := range asks {
			asks[i] = ask(fmt.Sprintf("workflow:%d:%d", n, i), lease)
		}
		for i := 0; pb.Next(); i++ {
			i %= len(asks)
			if err := pair(ctx, s, asks[i:i+1], claims); err != nil {
				b.Error(err)
				return
			}
		}
	})
}

func BenchmarkAcquireReleaseBindTTL(b *testing.B) {
	s, _ := open(b, memory.NewSpace(), "a")
	ctx := context.Background()
	asks, claims := []store.Ask{ask("cron:1", store.LeaseID{})}, make([]store.Claim, 1)
	asks[0].TTL = time.Minute
	b.ReportAllocs()
	for b.Loop() {
		if err := pair(ctx, s, asks, claims); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkHeld(b *testing.B) {
	s, lease := open(b, memory.NewSpace(), "a")
	ctx := context.Background()
	if _, err := s.Acquire(ctx, []store.Ask{ask("k", lease)}); err != nil {
		b.Fatal(err)
	}
	asks := []store.Ask{ask("k", lease)}
	b.ReportAllocs()
	for b.Loop() {
		answers, err := s.Acquire(ctx, asks)
		if err != nil || answers[0].Outcome != store.Held {
			b.Fatal(answers, err)
		}
	}
}

// A long queue: after each hand-off, a new waiter joins at the end.
func BenchmarkHandOff(b *testing.B) {
	for _, waiting := range []int{1, 10000} {
		b.Run(fmt.Sprint(waiting), func(b *testing.B) {
			s, lease := open(b, memory.NewSpace(), "a")
			ctx := context.Background()
			var token int64
			s.OnNews(func(n store.News) { token = n.Answer.Token })
			answers, err := s.Acquire(ctx, []store.Ask{ask("k", lease)})
			if err != nil {
				b.Fatal(err)
			}
			token = answers[0].Token
			enqueue := func() {
				if answers, err := s.Enqueue(ctx, []store.Ask{ask("k", lease)}); err != nil || answers[0].Outcome != store.Queued {
					b.Fatal(answers, err)
				}
			}
			for range waiting {
				enqueue()
			}
			claims := make([]store.Claim, 1)
			b.ReportAllocs()
			for b.Loop() {
				before := token
				claims[0] = store.Claim{Key: "k", Token: token, Lease: lease}
				if _, err := s.Release(ctx, claims); err != nil || token == before {
					b.Fatal(err)
				}
				enqueue()
			}
		})
	}
}

// One share is acquired and released while others are held.
func BenchmarkShared(b *testing.B) {
	for _, others := range []int{0, 10, 999} {
		for _, limit := range []int{0, 1000} {
			b.Run(fmt.Sprintf("others=%d/limit=%d", others, limit), func(b *testing.B) {
				s, lease := open(b, memory.NewSpace(), "a")
				ctx := context.Background()
				asks, claims := make([]store.Ask, 1), make([]store.Claim, 1)
				for range others {
					asks[0] = ask("k", lease)
					asks[0].Shared, asks[0].Limit = true, limit
					if answers, err := s.Acquire(ctx, asks); err != nil || answers[0].Outcome != store.Granted {
						b.Fatal(answers, err)
					}
				}
				asks[0] = ask("k", lease)
				asks[0].Shared, asks[0].Limit = true, limit
				b.ReportAllocs()
				for b.Loop() {
					if err := pair(ctx, s, asks, claims); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
