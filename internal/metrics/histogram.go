package metrics

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
)

// The upper bounds of the buckets, in seconds and in items.
var (
	// lockBuckets are for waits and holds: from imperceptible ones to forgotten locks.
	lockBuckets = []float64{.001, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600}
	// statementBuckets end at the usual timeout of a statement.
	statementBuckets = []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5}
	// handOffBuckets include hand-offs that only the check with a renewal finds.
	handOffBuckets = append(slices.Clip(statementBuckets), 10)
	batchBuckets   = []float64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000}
)

// exemplarAge is how long a bucket keeps an exemplar. Metrics are not read more often, and a new exemplar takes
// memory.
const exemplarAge = time.Second

type histogram struct {
	prometheus.Observer

	buckets []float64
	// kept is when each bucket got its exemplar. It is nil without spans.
	kept []atomic.Int64
}

func newHistogram(o prometheus.Observer, buckets []float64, exemplars bool) *histogram {
	h := &histogram{Observer: o, buckets: buckets}
	if exemplars {
		h.kept = make([]atomic.Int64, len(buckets)+1)
	}
	return h
}

func (h *histogram) took(ctx context.Context, d time.Duration) {
	seconds := max(d, 0).Seconds()
	if h.kept != nil {
		if span := trace.SpanContextFromContext(ctx); span.IsSampled() && h.wants(seconds) {
			h.Observer.(prometheus.ExemplarObserver).ObserveWithExemplar(seconds,
				prometheus.Labels{"trace_id": span.TraceID().String(), "span_id": span.SpanID().String()})
			return
		}
	}
	h.Observe(seconds)
}

func (h *histogram) wants(value float64) bool {
	at, _ := slices.BinarySearch(h.buckets, value)
	now, last := time.Now().UnixNano(), h.kept[at].Load()
	return now-last >= int64(exemplarAge) && h.kept[at].CompareAndSwap(last, now)
}
