// Package telemetry decides where spans and metrics are sent. It makes the providers of OpenTelemetry from the
// standard OTEL_ variables.
//
// # How signals are turned on
//
// Spans are made if OTEL_TRACES_EXPORTER (other than none), OTEL_EXPORTER_OTLP_ENDPOINT or
// OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is set. Metrics are sent if the same variables for METRICS are set.
// OTEL_SDK_DISABLED=true turns both off. Off means that there is no tracer, no queue and no goroutine. GET
// /metrics always works.
//
// The SDK reads exporters, sampler, limits and intervals from the standard variables. These are often set for a
// whole cluster, so a bad value never stops the lock service: a warning names the value, and the signal is off
// or has the SDK's default. The trace context of calls is always W3C's (traceparent, tracestate, baggage),
// regardless of OTEL_PROPAGATORS, because every pod must be able to read it in the lock rows.
//
// The sampler is made here, from the same variables, because the tracer asks it before the SDK makes anything of a span.
//
// Metrics are sent as /metrics shows them: with Prometheus names, cumulative, with the same buckets.
//
// An unreachable collector does not slow the sidecar: if the queue is full, spans are dropped, and the log
// reports the error at intervals. At the end, the sidecar waits for the collector until the context of
// [Telemetry.Stop] ends.
package telemetry

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/common/expfmt"
	"github.com/valyala/fasthttp"
	"go.opentelemetry.io/contrib/exporters/autoexport"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/locksidecar/locksidecar/internal/metrics"
	"github.com/locksidecar/locksidecar/internal/tracing"
)

// Options describe the sidecar and its environment.
type Options struct {
	// Lookup finds the variables that turn signals on, and the sampler. Other settings come from the process's environment.
	Lookup func(name string) (string, bool)
	// Version is the sidecar's. Instance names this run of it.
	Version, Instance string
	// Pod is the pod or host. Namespace is that of the keys.
	Pod, Namespace string
	// MaxLinks limits the calls of a batch, whose span has a link to each.
	MaxLinks int
	Logger   *slog.Logger
}

// Telemetry contains the recorders of spans and metrics.
type Telemetry struct {
	// Tracer makes the sidecar's spans, Tracers those of libraries. Both are nil if tracing is off.
	Tracer  *tracing.Tracer
	Tracers trace.TracerProvider
	// Metrics are the recorders.
	Metrics *metrics.Set

	log     *slog.Logger
	process *prometheus.Registry // of Go and the process
	scrape  sync.Mutex           // held while GET /metrics reads the metrics
	stops   []func(context.Context) error
	once    sync.Once
	stopped error
}

// Start makes the configured providers. It warns about those that cannot be made, and continues without them.
func Start(ctx context.Context, o Options) *Telemetry {
	e := env{lookup: o.Lookup}
	report(o.Logger)
	t := &Telemetry{log: o.Logger, process: prometheus.NewRegistry()}
	about, err := describe(ctx, e, o)
	if err != nil {
		o.Logger.Warn("OTEL_RESOURCE_ATTRIBUTES is not understood in full", "error", err)
	}
	t.startTraces(ctx, e, o, about)
	t.say(e, t.startMetrics(ctx, e, o, about))
	return t
}

// say logs which signals are on, because otherwise a mistake is noticed only when spans are missing.
func (t *Telemetry) say(e env, sent bool) {
	if t.Tracer != nil || sent {
		t.log.Info("telemetry is sent", "traces", t.Tracer != nil, "metrics", sent)
	}
	if value := e.get("OTEL_PROPAGATORS"); t.Tracer != nil && value != "" && !e.lists("OTEL_PROPAGATORS", "tracecontext") {
		t.log.Warn("OTEL_PROPAGATORS is ignored: the trace context of calls is read as W3C tracecontext and baggage only", "value", value)
	}
	if value := e.get(producers); sent && value != "" && !e.lists(producers, producerName) {
		t.log.Warn(producers+" leaves out the sidecar's metrics: add "+producerName+" to it", "value", value)
	}
}

// describe is the resource of all that is sent. The standard variables override it.
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

func (t *Telemetry) startTraces(ctx context.Context, e env, o Options, about *resource.Resource) {
	if !e.on(traces) {
		return
	}
	exporter, err := autoexport.NewSpanExporter(ctx)
	if err != nil {
		t.notSent(e, traces, err)
		return
	}
	limits := sdktrace.NewSpanLimits() // from the environment
	if e.get("OTEL_SPAN_LINK_COUNT_LIMIT") == "" {
		// One more link leads from a batch's own parent.
		limits.LinkCountLimit = max(limits.LinkCountLimit, o.MaxLinks+1)
	}
	options := []sdktrace.TracerProviderOption{sdktrace.WithBatcher(exporter, t.workable), sdktrace.WithResource(about), sdktrace.WithRawSpanLimits(limits)}
	sampler := e.sampler()
	if sampler != nil {
		options = append(options, sdktrace.WithSampler(sampler))
	}
	provider := sdktrace.NewTracerProvider(options...)
	t.stops = append(t.stops, provider.Shutdown)
	t.Tracers, t.Tracer = provider, tracing.New(provider, tracing.Namespace.String(o.Namespace))
	if sampler != nil {
		t.Tracer.SampleBy(sampler)
	}
}

// maxQueue limits the spans that may wait, because the SDK allocates memory for all of them at once.
const maxQueue = 1_000_000

// workable replaces a negative queue size, for which the SDK panics, and a zero delay, with which it would
// never pause.
func (t *Telemetry) workable(o *sdktrace.BatchSpanProcessorOptions) {
	asked := *o
	if o.BatchTimeout <= 0 {
		o.BatchTimeout = sdktrace.DefaultScheduleDelay * time.Millisecond
	}
	if o.MaxQueueSize < 1 || o.MaxQueueSize > maxQueue {
		o.MaxQueueSize = sdktrace.DefaultMaxQueueSize
	}
	if o.MaxExportBatchSize < 1 || o.MaxExportBatchSize > o.MaxQueueSize {
		o.MaxExportBatchSize = min(sdktrace.DefaultMaxExportBatchSize, o.MaxQueueSize)
	}
	if *o != asked {
		t.log.Warn("some OTEL_BSP_ variables have values that are not possible; these values are used instead",
			"schedule_delay", o.BatchTimeout.String(), "max_queue_size", o.MaxQueueSize, "max_export_batch_size", o.MaxExportBatchSize)
	}
}

func (t *Telemetry) startMetrics(ctx context.Context, e env, o Options, about *resource.Resource) (sent bool) {
	// Without spans, an exemplar has no span to name.
	t.Metrics = metrics.New(o.Version, t.Tracer != nil && e.get("OTEL_METRICS_EXEMPLAR_FILTER") != "always_off")
	t.process.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	if !e.on(metricsSignal) {
		return false
	}
	reader, err := newReader(ctx, t.Metrics.Registry)
	if err != nil {
		t.notSent(e, metricsSignal, err)
		return false
	}
	provider := metric.NewMeterProvider(metric.WithResource(about), metric.WithReader(reader))
	t.stops = append(t.stops, provider.Shutdown)
	return true
}

// notSent warns that a configured signal is off. It names the variables, because the exporters' errors do not.
func (t *Telemetry) notSent(e env, s signal, err error) {
	t.log.Warn("a telemetry signal is off, and locks are not affected: OpenTelemetry cannot use these variables", "signal", strings.ToLower(string(s)),
		"error", hide(err.Error()), s.exporter(), e.get(s.exporter()), otlpPrefix+"PROTOCOL", cmp.Or(e.get(s.otlp("PROTOCOL")), e.get(otlpPrefix+"PROTOCOL")))
}

// Stop sends what is still waiting, until ctx ends. It may be called more than once.
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
			case <-ctx.Done(): // even if an exporter blocks
				t.stopped = errors.Join(t.stopped, ctx.Err())
			}
		}
	})
	return t.stopped
}

// handleErrors sets the handler of OpenTelemetry's errors, which belongs to the whole process.
func handleErrors(f func(error)) { otel.SetErrorHandler(otel.ErrorHandlerFunc(f)) }

// env reads the standard variables that turn signals on. By the standard, an empty one is unset.
type env struct {
	lookup func(name string) (string, bool)
}

func (e env) get(name string) string {
	value, _ := e.lookup(name)
	return value
}

// sampler is the one that the variables name. It is made here, because the SDK does not show its own, and calls are sampled before the SDK makes
// anything for them. It is nil if the variables are wrong: the SDK then reports that, and uses its default.
func (e env) sampler() sdktrace.Sampler {
	name := cmp.Or(strings.ToLower(strings.TrimSpace(e.get("OTEL_TRACES_SAMPLER"))), "parentbased_always_on")
	name, follows := strings.CutPrefix(name, "parentbased_")
	var s sdktrace.Sampler
	switch name {
	case "always_on":
		s = sdktrace.AlwaysSample()
	case "always_off":
		s = sdktrace.NeverSample()
	case "traceidratio":
		ratio, err := strconv.ParseFloat(cmp.Or(strings.TrimSpace(e.get("OTEL_TRACES_SAMPLER_ARG")), "1"), 64)
		if err != nil || !(ratio >= 0 && ratio <= 1) {
			return nil
		}
		s = sdktrace.TraceIDRatioBased(ratio)
	default:
		return nil
	}
	if follows {
		return sdktrace.ParentBased(s)
	}
	return s
}

type signal string

const (
	traces        signal = "TRACES"
	metricsSignal signal = "METRICS"
)

// exporter is OTEL_TRACES_EXPORTER or OTEL_METRICS_EXPORTER. otlp is for instance
// OTEL_EXPORTER_OTLP_TRACES_ENDPOINT.
func (s signal) exporter() string { return "OTEL_" + string(s) + "_EXPORTER" }

func (s signal) otlp(name string) string { return otlpPrefix + string(s) + "_" + name }

const otlpPrefix = "OTEL_EXPORTER_OTLP_"

func (e env) on(s signal) bool {
	if strings.EqualFold(e.get("OTEL_SDK_DISABLED"), "true") {
		return false
	}
	if exporter := e.get(s.exporter()); exporter != "" {
		return exporter != "none"
	}
	return e.get(otlpPrefix+"ENDPOINT") != "" || e.get(s.otlp("ENDPOINT")) != ""
}

func (e env) lists(variable, name string) bool {
	return slices.ContainsFunc(strings.Split(e.get(variable), ","), func(one string) bool { return strings.TrimSpace(one) == name })
}

// Scrape answers GET /metrics in the format that the caller prefers: Prometheus' text, or OpenMetrics with
// exemplars. It answers one call at a time, because each has all metrics in memory, and a thousand at once
// would not fit.
func (t *Telemetry) Scrape(ctx *fasthttp.RequestCtx) {
	t.scrape.Lock()
	defer t.scrape.Unlock()
	families, err := prometheus.Gatherers{t.Metrics.Registry, t.process}.Gather()
	if err != nil {
		t.log.Warn("some metrics cannot be read", "error", err)
	}
	if len(families) == 0 {
		ctx.Error("no metrics can be read", fasthttp.StatusInternalServerError)
		return
	}
	accept := http.Header{"Accept": {string(ctx.Request.Header.Peek("Accept"))}}
	format := expfmt.NegotiateAccept(accept, expfmt.DefaultOpenMetricsAcceptedFormats()...)
	ctx.SetContentType(string(format))
	out := expfmt.NewEncoder(ctx, format)
	for _, family := range families {
		if err := out.Encode(family); err != nil {
			t.log.Warn("a metric cannot be written", "name", family.GetName(), "error", err)
		}
	}
	if end, ok := out.(expfmt.Closer); ok {
		_ = end.Close() // it only writes to memory
	}
}
