// Package telemetry decides where spans and figures go: it makes the providers of
// OpenTelemetry from the standard OTEL_ variables.
//
// # What turns what on
//
// Spans are made when OTEL_TRACES_EXPORTER (but none), OTEL_EXPORTER_OTLP_ENDPOINT or
// OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is set; figures are sent when the same is set for
// METRICS. OTEL_SDK_DISABLED=true turns both off. Off means that nothing is made: no
// tracer, no queue, no goroutine. The figures of GET /metrics are there in any case;
// they cost something only when they are read.
//
// Exporters, sampler, limits and intervals are what the standard variables say; this
// package refuses values that the SDK would silently replace by others. The trace
// context of calls is W3C's (traceparent, tracestate, baggage), whatever
// OTEL_PROPAGATORS says: it also stands in the lock rows, where every pod must read it.
//
// Histograms are sent as they are kept here: cumulative, with their own buckets, whatever
// temporality and aggregation of metrics the environment prefers. The other figures follow it.
//
// A collector that cannot be reached stops nothing and slows nothing: spans that find
// the queue full are dropped, and the log says, now and then, what went wrong. The end
// of the sidecar waits for it, for as long as the context of [Telemetry.Stop] lasts.
package telemetry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.opentelemetry.io/contrib/exporters/autoexport"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	otelprom "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/locksidecar/locksidecar/internal/metrics"
	"github.com/locksidecar/locksidecar/internal/tracing"
)

// Options describe the sidecar, and where it runs.
type Options struct {
	// Lookup finds a variable of the environment. It decides what is turned on, and
	// what is refused; what is on reads its settings from the process's environment.
	Lookup func(name string) (string, bool)
	// Version is the sidecar's, Instance this run of it.
	Version, Instance string
	// Pod is the pod or host, Namespace that of the keys.
	Pod, Namespace string
	// MaxLinks is how many calls a batch may carry: its span has a link to each.
	MaxLinks int
	Logger   *slog.Logger
}

// Telemetry is what spans and figures go to.
type Telemetry struct {
	// Tracer makes the sidecar's spans, Tracers those of libraries; both are nil when
	// tracing is off.
	Tracer  *tracing.Tracer
	Tracers trace.TracerProvider
	// Metrics are the recorders of figures.
	Metrics *metrics.Set

	log      *slog.Logger
	registry *prometheus.Registry
	scrape   sync.Mutex // is held while figures are read for GET /metrics
	stops    []func(context.Context) error
	once     sync.Once
	stopped  error
}

// Start makes what the environment asks for. An error names the variable, its value,
// and what is allowed.
func Start(ctx context.Context, o Options) (*Telemetry, error) {
	e := env{lookup: o.Lookup}
	if err := e.check(); err != nil {
		return nil, err
	}
	report(o.Logger)
	t := &Telemetry{log: o.Logger, registry: prometheus.NewRegistry()}
	about, err := describe(ctx, e, o)
	if err != nil {
		o.Logger.Warn("OTEL_RESOURCE_ATTRIBUTES is not understood in full", "error", err)
	}
	err = t.startTraces(ctx, e, o, about)
	if err == nil {
		err = t.startMetrics(ctx, e, o, about)
	}
	if err != nil {
		_ = t.Stop(ctx)
		return nil, err
	}
	t.say(e)
	return t, nil
}

// say tells what is on, for nobody sees it otherwise before the first span is missed.
func (t *Telemetry) say(e env) {
	if e.on(traces) || e.on(figures) {
		t.log.Info("telemetry is sent", "traces", e.on(traces), "metrics", e.on(figures))
	}
	if value := e.get("OTEL_PROPAGATORS"); e.on(traces) && value != "" && !e.w3c(value) {
		t.log.Warn("OTEL_PROPAGATORS is ignored: the trace context of calls is read as W3C tracecontext and baggage only", "value", value)
	}
	if value := e.get("OTEL_METRICS_PRODUCERS"); e.on(figures) && value != "" && !e.ours(value) {
		t.log.Warn("OTEL_METRICS_PRODUCERS leaves out the sidecar's histograms: add "+producerName+" to it", "value", value)
	}
}

// describe is the resource of all that is sent. What the standard variables say wins.
func describe(ctx context.Context, e env, o Options) (*resource.Resource, error) {
	host := attribute.Key("host.name")
	if e.get("KUBERNETES_SERVICE_HOST") != "" {
		host = "k8s.pod.name"
	}
	return resource.New(ctx,
		resource.WithTelemetrySDK(),
		resource.WithAttributes(
			attribute.String("service.name", "locksidecar"),
			attribute.String("service.version", o.Version),
			attribute.String("service.instance.id", o.Instance),
			host.String(o.Pod),
		),
		resource.WithFromEnv(),
	)
}

func (t *Telemetry) startTraces(ctx context.Context, e env, o Options, about *resource.Resource) error {
	if !e.on(traces) {
		return nil
	}
	exporter, err := autoexport.NewSpanExporter(ctx)
	if err != nil {
		return refused(e, traces, err)
	}
	limits := sdktrace.NewSpanLimits() // of the environment
	if e.get("OTEL_SPAN_LINK_COUNT_LIMIT") == "" {
		// One link more leads from a batch's own parent.
		limits.LinkCountLimit = max(limits.LinkCountLimit, o.MaxLinks+1)
	}
	provider := sdktrace.NewTracerProvider(
		sdktrace.WithBatcher(exporter), sdktrace.WithResource(about), sdktrace.WithRawSpanLimits(limits))
	t.stops = append(t.stops, provider.Shutdown)
	t.Tracers, t.Tracer = provider, tracing.New(provider, tracing.Namespace.String(o.Namespace))
	return nil
}

func (t *Telemetry) startMetrics(ctx context.Context, e env, o Options, about *resource.Resource) error {
	// Without spans there is nothing that an exemplar could lead to.
	t.Metrics = metrics.New(o.Version, t.Tracer != nil && e.get("OTEL_METRICS_EXEMPLAR_FILTER") != "always_off")
	scraped, err := otelprom.New(otelprom.WithRegisterer(t.registry), otelprom.WithoutScopeInfo(), otelprom.WithProducer(t.Metrics))
	if err != nil {
		return err
	}
	readers := []metric.Option{metric.WithResource(about), metric.WithReader(scraped)}
	if e.on(figures) {
		sent, err := newReader(ctx, t.Metrics)
		if err != nil {
			return refused(e, figures, err)
		}
		readers = append(readers, metric.WithReader(sent))
	}
	provider := metric.NewMeterProvider(readers...)
	t.stops = append(t.stops, provider.Shutdown)
	if err := t.Metrics.Register(provider); err != nil {
		return err
	}
	return errors.Join(
		t.registry.Register(collectors.NewGoCollector()),
		t.registry.Register(collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})),
	)
}

// refused names the variable of an error of the exporters, which do not.
func refused(e env, s signal, err error) error {
	name := s.exporter()
	return fmt.Errorf("%s is %q (default: otlp), which cannot work: %w", name, e.get(name), err)
}

// Stop sends what is not sent yet, until ctx ends. It may be called more than once.
func (t *Telemetry) Stop(ctx context.Context) error {
	t.once.Do(func() {
		results := make(chan error, len(t.stops))
		for _, stop := range t.stops {
			go func() { results <- stop(ctx) }()
		}
		for range t.stops {
			select {
			case err := <-results:
				t.stopped = errors.Join(t.stopped, err)
			case <-ctx.Done(): // whatever an exporter does
				t.stopped = errors.Join(t.stopped, ctx.Err())
			}
		}
	})
	return t.stopped
}

// handleErrors is called for what goes wrong in OpenTelemetry. This is the one thing
// that can only be set for the whole process.
func handleErrors(f func(error)) { otel.SetErrorHandler(otel.ErrorHandlerFunc(f)) }
