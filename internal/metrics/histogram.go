package metrics

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/trace"
)

// The bounds of the buckets: durations in microseconds (of which an int64 can
// sum up a hundred thousand locks that are held for years), sizes in items.
var (
	// lockBounds are those of waits and holds: from what nobody feels to what somebody
	// forgot.
	lockBounds = durations(time.Millisecond, 5*time.Millisecond, 10*time.Millisecond, 25*time.Millisecond,
		50*time.Millisecond, 100*time.Millisecond, 250*time.Millisecond, 500*time.Millisecond,
		time.Second, 2500*time.Millisecond, 5*time.Second, 10*time.Second, 30*time.Second,
		time.Minute, 5*time.Minute, 15*time.Minute, time.Hour)
	// statementBounds end where a statement's timeout usually is.
	statementBounds = durations(100*time.Microsecond, 250*time.Microsecond, 500*time.Microsecond,
		time.Millisecond, 2500*time.Microsecond, 5*time.Millisecond, 10*time.Millisecond, 25*time.Millisecond,
		50*time.Millisecond, 100*time.Millisecond, 250*time.Millisecond, 500*time.Millisecond,
		time.Second, 2500*time.Millisecond, 5*time.Second)
	// handOffBounds go on to what is found out only by the check of each renewal.
	handOffBounds = scale{append(slices.Clone(statementBounds.bounds), (10 * time.Second).Microseconds()), seconds}
	batchBounds   = scale{[]int64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000}, 1}
)

// scale is the bounds of a histogram's buckets, in units of which one is per in the
// figures that are shown.
type scale struct {
	bounds []int64
	per    float64
}

// seconds is how many of the values of a duration are a second.
const seconds = float64(time.Second / time.Microsecond)

func durations(bounds ...time.Duration) scale {
	s := scale{per: seconds}
	for _, b := range bounds {
		s.bounds = append(s.bounds, b.Microseconds())
	}
	return s
}

// histogram counts values in buckets, with atomic additions only. The SDK's own took 125
// ns for one value, 190 where two processors record, which is more than may be spent on
// all that is recorded of an acquire and its release.
type histogram struct {
	scale scale
	// cells are the sum, and the counts of the buckets, one more than there are bounds:
	// side by side, so that a processor that records fetches one cache line.
	cells []atomic.Int64
	// exemplars has for each bucket the last value of which the span is sampled; it is
	// nil where there are no spans.
	exemplars []atomic.Pointer[exemplar]
}

type exemplar struct {
	value int64
	at    time.Time
	trace trace.TraceID
	span  trace.SpanID
}

// exemplarAge is how long an exemplar is kept before another takes its place: figures are
// not read more often.
const exemplarAge = time.Second

func newHistogram(s scale, exemplars bool) *histogram {
	h := &histogram{scale: s, cells: make([]atomic.Int64, len(s.bounds)+2)}
	if exemplars {
		h.exemplars = make([]atomic.Pointer[exemplar], len(s.bounds)+1)
	}
	return h
}

// took records a duration.
func (h *histogram) took(ctx context.Context, d time.Duration) {
	h.record(ctx, max(d, 0).Microseconds())
}

func (h *histogram) record(ctx context.Context, value int64) {
	if h == nil { // of a recorder that nobody made
		return
	}
	at := 0
	for at < len(h.scale.bounds) && value > h.scale.bounds[at] {
		at++
	}
	h.cells[0].Add(value)
	h.cells[1+at].Add(1)
	if h.exemplars != nil {
		h.keep(ctx, at, value)
	}
}

func (h *histogram) keep(ctx context.Context, at int, value int64) {
	span := trace.SpanContextFromContext(ctx)
	if !span.IsSampled() {
		return
	}
	now, last := time.Now(), h.exemplars[at].Load()
	if last == nil || now.Sub(last.at) >= exemplarAge {
		h.exemplars[at].Store(&exemplar{value: value, at: now, trace: span.TraceID(), span: span.SpanID()})
	}
}

// point is what the histogram shows. The sum may be of a value more or less than are
// counted: nobody waits for anybody here.
func (h *histogram) point(start, now time.Time, labels attribute.Set) metricdata.HistogramDataPoint[float64] {
	p := metricdata.HistogramDataPoint[float64]{
		Attributes: labels, StartTime: start, Time: now,
		Bounds: make([]float64, len(h.scale.bounds)), BucketCounts: make([]uint64, len(h.scale.bounds)+1),
		Sum: float64(h.cells[0].Load()) / h.scale.per,
	}
	for i, bound := range h.scale.bounds {
		p.Bounds[i] = float64(bound) / h.scale.per
	}
	for i := range p.BucketCounts {
		p.BucketCounts[i] = uint64(h.cells[1+i].Load())
		p.Count += p.BucketCounts[i]
	}
	for i := range h.exemplars {
		if e := h.exemplars[i].Load(); e != nil {
			p.Exemplars = append(p.Exemplars, metricdata.Exemplar[float64]{
				Time: e.at, Value: float64(e.value) / h.scale.per, TraceID: e.trace[:], SpanID: e.span[:],
			})
		}
	}
	return p
}

// count is how many values were recorded.
func (h *histogram) count() int64 {
	n := int64(0)
	for i := range h.cells[1:] {
		n += h.cells[1+i].Load()
	}
	return n
}

// histograms is one histogram for each value of a label.
type histograms struct {
	label     attribute.Key
	scale     scale
	exemplars bool
	byOne     table[labelled]
}

type labelled struct {
	*histogram

	labels attribute.Set
}

func (h *histograms) record(ctx context.Context, name string, value int64) {
	one := h.byOne.get(name)
	if one == nil {
		one = h.byOne.add(name, maxNames, h.make)
	}
	one.record(ctx, value)
}

func (h *histograms) took(ctx context.Context, name string, d time.Duration) {
	h.record(ctx, name, max(d, 0).Microseconds())
}

func (h *histograms) make(name string) *labelled {
	return &labelled{newHistogram(h.scale, h.exemplars), attribute.NewSet(h.label.String(name))}
}
