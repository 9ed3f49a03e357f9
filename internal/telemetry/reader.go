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

// producerName is the name of the sidecar's metrics in the variable producers.
const (
	producers    = "OTEL_METRICS_PRODUCERS"
	producerName = "locksidecar"
)

// autoexport knows only producers of the whole process. So the registry of a reader is passed through these
// variables while the reader is made.
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

// newReader makes the reader that the environment configures. The reader sends the metrics that it reads.
func newReader(ctx context.Context, of *prometheus.Registry) (metric.Reader, error) {
	making.Lock()
	defer making.Unlock()
	register()
	current = of
	return autoexport.NewMetricReader(ctx)
}

// producer corrects the bridge (0.72), which sends the ids of exemplars as hexadecimal digits, 32 bytes instead
// of 16. A collector would refuse the whole message.
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
