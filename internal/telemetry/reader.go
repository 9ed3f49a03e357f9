package telemetry

import (
	"context"
	"encoding/hex"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	bridge "go.opentelemetry.io/contrib/bridges/prometheus"
	"go.opentelemetry.io/contrib/exporters/autoexport"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
)

// producerName is what our metrics are called in the variable producers.
const (
	producers    = "OTEL_METRICS_PRODUCERS"
	producerName = "locksidecar"
)

// autoexport knows only producers of the whole process, so the registry of a reader is handed over here
// while the reader is made.
var (
	making   sync.Mutex
	current  *prometheus.Registry
	register = sync.OnceFunc(func() {
		factory := func(context.Context) (metric.Producer, error) {
			return producer{bridge.NewMetricProducer(bridge.WithGatherer(current))}, nil
		}
		autoexport.RegisterMetricProducer(producerName, factory)
		autoexport.WithFallbackMetricProducer(factory)
	})
)

// newReader makes the reader that the environment asks for, which sends what it reads.
func newReader(ctx context.Context, of *prometheus.Registry) (metric.Reader, error) {
	making.Lock()
	defer making.Unlock()
	register()
	current = of
	return autoexport.NewMetricReader(ctx)
}

// producer mends the bridge (0.72): it sends the ids of exemplars as hexadecimal letters, 32 bytes
// instead of 16. A collector refuses the whole message.
type producer struct{ metric.Producer }

// Produce implements [metric.Producer].
func (p producer) Produce(ctx context.Context) ([]metricdata.ScopeMetrics, error) {
	scopes, err := p.Producer.Produce(ctx)
	for _, scope := range scopes {
		for _, m := range scope.Metrics {
			h, _ := m.Data.(metricdata.Histogram[float64])
			for _, point := range h.DataPoints {
				for i := range point.Exemplars {
					e := &point.Exemplars[i]
					e.TraceID, e.SpanID = fromHex(e.TraceID), fromHex(e.SpanID)
				}
			}
		}
	}
	return scopes, err
}

func fromHex(id []byte) []byte {
	n, err := hex.Decode(id, id)
	if err != nil {
		return nil
	}
	return id[:n]
}
