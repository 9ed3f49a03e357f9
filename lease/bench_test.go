package lease

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/locksidecar/locksidecar/internal/metrics"
	"github.com/locksidecar/locksidecar/internal/tracing"
	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/lease/internal/holdings"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/memory"
)

// benchManager is a manager on the memory store, configured as in production.
func benchManager(b testing.TB) *Manager {
	b.Helper()
	return benchTraced(b, nil)
}

func benchTraced(b testing.TB, tracer *tracing.Tracer) *Manager {
	b.Helper()
	st := memory.NewSpace().Open(store.Identity{Namespace: "test", Instance: "a", Pod: "a"})
	m, err := New(types.Config{
		Instance: "a", Pod: "a", TTL: 15 * time.Second, RenewInterval: 5 * time.Second,
		StoreTimeout: 5 * time.Second, PollInterval: time.Second, CacheSize: 10_000, CacheTTL: time.Hour,
		BatchMax: 1000, MaxSessions: 1000, MaxLocksPerSession: 100_000, MaxWaiters: 100_000,
		Logger: slog.New(slog.DiscardHandler), Tracer: tracer, Metrics: metrics.New("", tracer != nil).Locks,
	}, st)
	if err != nil {
		b.Fatal(err)
	}
	_ = st.Start(context.Background(), m.News)
	_ = m.Start(context.Background())
	b.Cleanup(m.Stop)
	return m
}

func benchSession(b testing.TB, m *Manager) *holdings.Session {
	b.Helper()
	s, err := m.OpenSession(types.SessionOptions{})
	if err != nil {
		b.Fatal(err)
	}
	return s
}

func BenchmarkAcquireRelease(b *testing.B) {
	m := benchManager(b)
	s := benchSession(b, m)
	ctx := context.Background()
	b.ReportAllocs()
	for b.Loop() {
		g, err := m.Acquire(ctx, s, types.Request{Key: "k"})
		if err != nil {
			b.Fatal(err)
		}
		if _, err := m.Release(ctx, s, types.ReleaseRequest{Key: "k", Token: g.Token}); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkAcquireReleaseRequestID measures acquires with request ids.
func BenchmarkAcquireReleaseRequestID(b *testing.B) {
	m := benchManager(b)
	s := benchSession(b, m)
	ctx, id := context.Background(), uuid.New()
	b.ReportAllocs()
	for b.Loop() {
		g, err := m.Acquire(ctx, s, types.Request{Key: "k", RequestID: id})
		if err != nil {
			b.Fatal(err)
		}
		if _, err := m.Release(ctx, s, types.ReleaseRequest{Key: "k", Token: g.Token}); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkAcquireReleaseTraced measures the cost of tracing, for calls that are sampled and for
// calls that are not.
func BenchmarkAcquireReleaseTraced(b *testing.B) {
	for name, ctx := range map[string]context.Context{"sampled": sampledCall(), "unsampled": context.Background()} {
		b.Run(name, func(b *testing.B) {
			m := benchTraced(b, tracing.New(sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(&openSpans{}))))
			s := benchSession(b, m)
			b.ReportAllocs()
			for b.Loop() {
				g, err := m.Acquire(ctx, s, types.Request{Key: "k"})
				if err != nil {
					b.Fatal(err)
				}
				if _, err := m.Release(ctx, s, types.ReleaseRequest{Key: "k", Token: g.Token}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkAcquireReleaseParallel(b *testing.B) {
	m := benchManager(b)
	var n atomic.Int64
	ctx := context.Background()
	b.ReportAllocs()
	b.SetParallelism(50)
	b.RunParallel(func(pb *testing.PB) {
		key := fmt.Sprint(n.Add(1))
		s, err := m.OpenSession(types.SessionOptions{})
		if err != nil {
			b.Error(err)
			return
		}
		for pb.Next() {
			g, err := m.Acquire(ctx, s, types.Request{Key: key})
			if err != nil {
				b.Error(err)
				return
			}
			if _, err := m.Release(ctx, s, types.ReleaseRequest{Key: key, Token: g.Token}); err != nil {
				b.Error(err)
			}
		}
	})
}

// BenchmarkHotKey hands one key to many waiters in turn.
func BenchmarkHotKey(b *testing.B) {
	m := benchManager(b)
	ctx := context.Background()
	b.SetParallelism(50)
	b.RunParallel(func(pb *testing.PB) {
		s, err := m.OpenSession(types.SessionOptions{})
		if err != nil {
			b.Error(err)
			return
		}
		for pb.Next() {
			g, err := m.Acquire(ctx, s, types.Request{Key: "k", Wait: types.WaitForever})
			if err != nil {
				b.Error(err)
				return
			}
			if _, err := m.Release(ctx, s, types.ReleaseRequest{Key: "k", Token: g.Token}); err != nil {
				b.Error(err)
			}
		}
	})
}

func BenchmarkGetOwn(b *testing.B) {
	m := benchManager(b)
	s := benchSession(b, m)
	ctx := context.Background()
	if _, err := m.Acquire(ctx, s, types.Request{Key: "k"}); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if v, err := m.Get(ctx, s, "k", false); err != nil || !v.Mine {
			b.Fatal(err)
		}
	}
}

func BenchmarkCachedHeldAnswer(b *testing.B) {
	m := benchManager(b)
	ctx := context.Background()
	if _, err := m.Acquire(ctx, nil, types.Request{Key: "k", Bind: types.BindTTL, TTL: time.Hour}); err != nil {
		b.Fatal(err)
	}
	s := benchSession(b, m)
	var held *types.HeldError
	b.ReportAllocs()
	for b.Loop() {
		if _, err := m.Acquire(ctx, s, types.Request{Key: "k"}); !errors.As(err, &held) {
			b.Fatal(err)
		}
	}
}

func BenchmarkSuspended(b *testing.B) {
	for b.Loop() {
		_ = clock.Read(clock.System{}).Suspended()
	}
}

// BenchmarkHeld measures the live bytes of a held lock: in the manager, plus its row in
// store/memory.
func BenchmarkHeld(b *testing.B) {
	const locks = 100_000
	for b.Loop() {
		m := benchManager(b)
		s := benchSession(b, m)
		keys := make([]string, locks)
		for i := range keys {
			keys[i] = fmt.Sprintf("bench:%026d", i)
		}
		before := liveBytes()
		for _, key := range keys {
			if _, err := m.Acquire(context.Background(), s, types.Request{Key: key}); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(liveBytes()-before)/locks, "B/lock")
		runtime.KeepAlive(keys)
		m.Stop()
	}
}

func liveBytes() uint64 {
	var stats runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}
