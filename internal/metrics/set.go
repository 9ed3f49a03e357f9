package metrics

import (
	"context"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/instrumentation"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/locksidecar/locksidecar/internal/tracing"
)

// Set is all recorders of a sidecar, and what they have recorded. It is a producer
// for the SDK's readers, which must know it, as well as [Set.Register] their provider.
type Set struct {
	Locks *Locks
	Store *Store
	Calls *Calls

	version      string
	start        time.Time
	linesDropped atomic.Pointer[func() int64]
}

// New makes a set of recorders. With exemplars, histograms remember the spans of some
// values.
func New(version string, exemplars bool) *Set {
	return &Set{
		Locks: newLocks(exemplars), Store: newStore(exemplars), Calls: &Calls{problems: counters{label: codeLabel}},
		version: version, start: time.Now(),
	}
}

// ObserveLog makes the counter of log lines that were left out.
func (s *Set) ObserveLog(dropped func() int64) { s.linesDropped.Store(&dropped) }

// Produce returns the histograms.
func (s *Set) Produce(context.Context) ([]metricdata.ScopeMetrics, error) {
	c := collection{start: s.start, now: time.Now()}
	l := s.Locks
	var waits, holds []labelled
	for _, t := range l.types.all() {
		waits = append(waits, labelled{t.waits, t.set})
		holds = append(holds, labelled{t.holds, t.set})
	}
	c.add("wait.duration", "s", "How long acquires that were granted took, by the type of the key.", waits...)
	c.add("hold.duration", "s", "How long locks of sessions were held, by the type of the key.", holds...)
	c.add("hand_off.duration", "s", "From the commit of a hand-off until the waiter's sidecar knew of it.", unlabelled(l.handOffs))
	c.add("renewal.duration", "s", "How long a renewal of leases took.", unlabelled(l.renewals))
	c.add("statement.duration", "s", "How long a statement took, by its name.", s.Store.statements.all()...)
	c.add("batch.size", "", "How many calls one operation of the store carried out.", s.Store.batches.all()...)
	return []metricdata.ScopeMetrics{{
		Scope: instrumentation.Scope{Name: tracing.Scope, Version: s.version}, Metrics: c.metrics,
	}}, nil
}

// collection is the histograms of one reading.
type collection struct {
	start, now time.Time
	metrics    []metricdata.Metrics
}

func (c *collection) add(name, unit, description string, of ...labelled) {
	if len(of) == 0 {
		return
	}
	data := metricdata.Histogram[float64]{Temporality: metricdata.CumulativeTemporality}
	for _, h := range of {
		data.DataPoints = append(data.DataPoints, h.point(c.start, c.now, h.labels))
	}
	c.metrics = append(c.metrics, metricdata.Metrics{Name: prefix + name, Description: description, Unit: unit, Data: data})
}

func unlabelled(h *histogram) labelled { return labelled{h, *attribute.EmptySet()} }

func (h *histograms) all() []labelled {
	var all []labelled
	for _, one := range h.byOne.all() {
		all = append(all, *one)
	}
	return all
}
