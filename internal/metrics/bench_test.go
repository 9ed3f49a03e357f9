package metrics

import (
	"context"
	"testing"
	"time"
)

// pair is all that is recorded of one acquire and its release.
func pair(ctx context.Context, l *Locks, key string) {
	l.Acquired(ctx, key, false, Granted, 12*time.Microsecond)
	l.Ended(ctx, key, Released, 30*time.Microsecond)
	l.Releases(key, Released)
}

func BenchmarkPair(b *testing.B) {
	l := New("", false).Locks
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			pair(b.Context(), l, "deploy:production-eu-west")
		}
	})
}

// The benchmark measures what tracing adds where the span of the call is not sampled.
func BenchmarkPairExemplars(b *testing.B) {
	l := New("", true).Locks
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			pair(b.Context(), l, "deploy:production-eu-west")
		}
	})
}

func BenchmarkPairOtherTypes(b *testing.B) {
	l := New("", false).Locks
	for i := range 2 * maxTypes {
		l.Waits(string(rune('a'+i))+":", 0)
	}
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			pair(b.Context(), l, "deploy:production-eu-west")
		}
	})
}
