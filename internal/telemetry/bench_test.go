package telemetry

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/locksidecar/locksidecar/internal/metrics"
)

// A scrape of as many series as there may be: fifty types with ten results each.
func BenchmarkScrape(b *testing.B) {
	tel := Start(b.Context(), Options{
		Lookup: func(string) (string, bool) { return "", false }, Logger: slog.New(slog.DiscardHandler),
	})
	for i := range 500 {
		key := fmt.Sprintf("type%d:k", i%50)
		tel.Metrics.Locks.Acquired(b.Context(), key, false, metrics.Granted, time.Second)
		tel.Metrics.Locks.Acquired(b.Context(), key, false, fmt.Sprint("result", i/50), time.Second)
	}
	var ctx fasthttp.RequestCtx
	b.ReportAllocs()
	for b.Loop() {
		ctx.Response.Reset()
		tel.Scrape(&ctx)
	}
	b.ReportMetric(float64(len(ctx.Response.Body())), "bytes")
}
