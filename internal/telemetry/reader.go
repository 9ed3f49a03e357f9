package telemetry

import (
	"context"
	"sync"

	"go.opentelemetry.io/contrib/exporters/autoexport"
	"go.opentelemetry.io/otel/sdk/metric"

	"github.com/locksidecar/locksidecar/internal/metrics"
)

// producerName is what our histograms are called in the variable producers.
const (
	producers    = "OTEL_METRICS_PRODUCERS"
	producerName = "locksidecar"
)

// autoexport knows producers by what is registered for the whole process, so the set of
// a reader is handed over here while the reader is made.
var (
	making   sync.Mutex
	current  *metrics.Set
	register = sync.OnceFunc(func() {
		factory := func(context.Context) (metric.Producer, error) { return current, nil }
		autoexport.RegisterMetricProducer(producerName, factory)
		autoexport.WithFallbackMetricProducer(factory)
	})
)

// newReader makes the reader that the environment asks for, which sends what it reads.
func newReader(ctx context.Context, of *metrics.Set) (metric.Reader, error) {
	making.Lock()
	defer making.Unlock()
	register()
	current = of
	return autoexport.NewMetricReader(ctx)
}
