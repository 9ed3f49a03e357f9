package telemetry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/goleak"

	"github.com/locksidecar/locksidecar/internal/metrics"
	"github.com/locksidecar/locksidecar/internal/testing/logtest"
	"github.com/locksidecar/locksidecar/internal/tracing"
)

func TestMain(m *testing.M) {
	for _, entry := range os.Environ() { // whoever runs the tests may be traced
		if name, _, _ := strings.Cut(entry, "="); strings.HasPrefix(name, "OTEL_") {
			_ = os.Unsetenv(name)
		}
	}
	goleak.VerifyTestMain(m)
}

// mustStart sets the environment, for the exporters read that of the process, and starts.
func mustStart(t *testing.T, variables map[string]string) (*Telemetry, *logtest.Log) {
	t.Helper()
	for name, value := range variables {
		t.Setenv(name, value)
	}
	log := &logtest.Log{}
	tel := Start(t.Context(), Options{
		Lookup: os.LookupEnv, Version: "1.2.3", Instance: "web-1-abcd", Pod: "web-1", Namespace: "orders",
		MaxLinks: 1000, Logger: slog.New(slog.NewTextHandler(log, nil)),
	})
	t.Cleanup(func() { _ = stop(t, tel, time.Second) })
	return tel, log
}

// patience is how long a test waits for what must happen.
const patience = 30 * time.Second

func stop(t *testing.T, tel *Telemetry, limit time.Duration) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return tel.Stop(ctx)
}

func TestWhatTurnsWhatOn(t *testing.T) {
	const endpoint = "OTEL_EXPORTER_OTLP_ENDPOINT"
	for name, c := range map[string]struct {
		set             map[string]string
		traces, figures bool
	}{
		"nothing":             {},
		"empty is unset":      {set: map[string]string{endpoint: "", "OTEL_TRACES_EXPORTER": "", "OTEL_METRICS_EXPORTER": ""}},
		"others only":         {set: map[string]string{"OTEL_SERVICE_NAME": "x", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}},
		"endpoint":            {map[string]string{endpoint: "http://c:4318"}, true, true},
		"traces' endpoint":    {map[string]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318"}, true, false},
		"metrics' endpoint":   {map[string]string{"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://c:4318"}, false, true},
		"traces' exporter":    {map[string]string{"OTEL_TRACES_EXPORTER": "otlp"}, true, false},
		"metrics' exporter":   {map[string]string{"OTEL_METRICS_EXPORTER": "otlp"}, false, true},
		"none, with endpoint": {map[string]string{endpoint: "http://c:4318", "OTEL_TRACES_EXPORTER": "none"}, false, true},
		"none for both":       {map[string]string{endpoint: "http://c:4318", "OTEL_TRACES_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "none"}, false, false},
		"disabled":            {map[string]string{endpoint: "http://c:4318", "OTEL_SDK_DISABLED": "TRUE"}, false, false},
		"not disabled":        {map[string]string{endpoint: "http://c:4318", "OTEL_SDK_DISABLED": "false"}, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			e := env{lookup: func(name string) (string, bool) { v, ok := c.set[name]; return v, ok }}
			if e.on(traces) != c.traces || e.on(metricsSignal) != c.figures {
				t.Errorf("traces %v, metrics %v", e.on(traces), e.on(metricsSignal))
			}
		})
	}
}

// Off costs nothing: no tracer, so nobody makes spans, and nothing that runs.
func TestOff(t *testing.T) {
	before := goleak.IgnoreCurrent()
	tel, log := mustStart(t, map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_SDK_DISABLED": "true"})
	if tel.Tracer != nil || tel.Tracers != nil {
		t.Error("there is a tracer")
	}
	goleak.VerifyNone(t, before)
	if log.String() != "" {
		t.Error(log)
	}
	if err := stop(t, tel, patience); err != nil {
		t.Error(err)
	}
}

// All that a sidecar does has arrived at the receiver when it has stopped.
func TestSent(t *testing.T) {
	to := newReceiver(t)
	tel, log := mustStart(t, map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": to.URL})
	if !strings.Contains(log.String(), "traces=true metrics=true") {
		t.Error("the log does not say what is on:", log)
	}
	ctx, span := tel.Tracer.Start(t.Context(), "lock.acquire", trace.SpanKindServer, tracing.Key.String("k"))
	tel.Metrics.Locks.Acquired(ctx, "deploy:prod", false, metrics.Granted, 3*time.Second)
	traceID := span.SpanContext().TraceID()
	span.End()
	if err := stop(t, tel, patience); err != nil {
		t.Fatal(err)
	}
	if err := stop(t, tel, patience); err != nil {
		t.Error("stopping again:", err)
	}
	if len(to.spans) != 1 || to.spans[0].GetName() != "lock.acquire" {
		t.Fatalf("%v", to.spans)
	}
	if of := words(to.spans[0].GetAttributes()); of["lock.key"] != "k" || of["lock.namespace"] != "orders" {
		t.Error(of)
	}
	wait := to.metrics["locksidecar_wait_duration_seconds"].GetHistogram().GetDataPoints()
	if len(wait) != 1 || wait[0].GetSum() != 3 || wait[0].GetCount() != 1 || words(wait[0].GetAttributes())["type"] != "deploy" {
		t.Fatalf("%v", wait)
	}
	if e := wait[0].GetExemplars(); len(e) != 1 || trace.TraceID(e[0].GetTraceId()) != traceID {
		t.Errorf("the exemplar leads elsewhere: %v", e)
	}
	if acquires := to.metrics["locksidecar_acquires_total"].GetSum(); !acquires.GetIsMonotonic() || acquires.GetDataPoints()[0].GetAsDouble() != 1 {
		t.Errorf("%v", acquires)
	}
	for name, want := range map[string]string{
		"service.name": "locksidecar", "service.version": "1.2.3", "service.instance.id": "web-1-abcd", "host.name": "web-1",
	} {
		if to.resource[name] != want {
			t.Errorf("%s is %q", name, to.resource[name])
		}
	}
}

func TestTheResourceOfTheEnvironmentWins(t *testing.T) {
	to := newReceiver(t)
	tel, _ := mustStart(t, map[string]string{
		"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": to.URL + "/v1/metrics", "KUBERNETES_SERVICE_HOST": "10.0.0.1",
		"OTEL_SERVICE_NAME": "orders-locks", "OTEL_RESOURCE_ATTRIBUTES": "service.version=9,team=a",
	})
	if tel.Tracer != nil {
		t.Error("only metrics were asked for")
	}
	if err := stop(t, tel, patience); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"service.name": "orders-locks", "service.version": "9", "team": "a", "k8s.pod.name": "web-1", "host.name": "",
	} {
		if to.resource[name] != want {
			t.Errorf("%s is %q", name, to.resource[name])
		}
	}
}

// A batch links to every call that it carries, unless somebody wants fewer.
func TestLinks(t *testing.T) {
	for limit, want := range map[string]int{"": 1000, "7": 7} {
		t.Run(limit, func(t *testing.T) {
			to := newReceiver(t)
			tel, _ := mustStart(t, map[string]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": to.URL + "/v1/traces", "OTEL_SPAN_LINK_COUNT_LIMIT": limit})
			_, span := tel.Tracer.Start(t.Context(), "store.batch", trace.SpanKindInternal)
			other := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{1}})
			for range 1000 {
				span.AddLink(trace.Link{SpanContext: other, Attributes: []attribute.KeyValue{tracing.Link.String(tracing.LinkCall)}})
			}
			span.End()
			if err := stop(t, tel, patience); err != nil {
				t.Fatal(err)
			}
			if n := len(to.spans[0].GetLinks()); n != want {
				t.Errorf("%d links", n)
			}
		})
	}
}

// An app that does not sample its trace has no spans of locks either.
func TestTheParentDecides(t *testing.T) {
	to := newReceiver(t)
	tel, _ := mustStart(t, map[string]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": to.URL + "/v1/traces"})
	for _, parent := range []string{
		"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00", "00-5bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
	} {
		ctx := trace.ContextWithRemoteSpanContext(t.Context(), tracing.Parse(parent))
		_, span := tel.Tracer.Start(ctx, parent, trace.SpanKindServer)
		span.End()
	}
	if err := stop(t, tel, patience); err != nil {
		t.Fatal(err)
	}
	if len(to.spans) != 1 || to.spans[0].GetTraceId()[0] != 0x5b {
		t.Errorf("%v", to.spans)
	}
}

// TestUnusableValuesAreWarnings: whatever the standard variables say, the sidecar starts. The
// log says what is not as asked for, and without what may be a secret. Signals that cannot be
// sent are off, the others on.
// Proves: threat hostile collector
func TestUnusableValuesAreWarnings(t *testing.T) {
	const nowhere = "http://127.0.0.1:1"
	for name, c := range map[string]struct {
		set           map[string]string
		traces, sends bool
		want          []string
	}{
		"exporter":         {map[string]string{"OTEL_TRACES_EXPORTER": "jaeger"}, false, true, []string{"signal=traces", "OTEL_TRACES_EXPORTER=jaeger"}},
		"metrics' too":     {map[string]string{"OTEL_METRICS_EXPORTER": "statsd"}, true, false, []string{"signal=metrics", "OTEL_METRICS_EXPORTER=statsd"}},
		"several":          {map[string]string{"OTEL_TRACES_EXPORTER": "otlp,console"}, false, true, []string{"signal=traces", "OTEL_TRACES_EXPORTER=otlp,console"}},
		"protocol":         {map[string]string{"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}, false, false, []string{"signal=traces", "signal=metrics", "OTEL_EXPORTER_OTLP_PROTOCOL=http/json"}},
		"signal's own":     {map[string]string{"OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": "udp"}, true, false, []string{"signal=metrics", "OTEL_EXPORTER_OTLP_PROTOCOL=udp"}},
		"endpoint":         {map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://u:s3cr3t@c:x"}, true, true, []string{"parse url"}},
		"gRPC's endpoint":  {map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "ftp://u:s3cr3t@c:1?s3cr3t", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, true, true, nil},
		"sampler":          {map[string]string{"OTEL_TRACES_SAMPLER": "parentbased_jaeger_remote"}, true, true, []string{"unsupported sampler: parentbased_jaeger_remote"}},
		"ratio":            {map[string]string{"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "10%"}, true, true, []string{"parsing sampler argument"}},
		"timeout":          {map[string]string{"OTEL_EXPORTER_OTLP_TIMEOUT": "10s"}, true, true, []string{"parse duration"}},
		"header":           {map[string]string{"OTEL_EXPORTER_OTLP_HEADERS": "authorization: Bearer s3cr3t"}, true, true, []string{"parse headers"}},
		"header's name":    {map[string]string{"OTEL_EXPORTER_OTLP_HEADERS": "a=b, my s3cr3t=="}, true, true, []string{"parse headers"}},
		"header's value":   {map[string]string{"OTEL_EXPORTER_OTLP_METRICS_HEADERS": "a=Bearer %zzs3cr3t"}, true, true, []string{"escape header value"}},
		"certificate":      {map[string]string{"OTEL_EXPORTER_OTLP_CERTIFICATE": "/no/such"}, true, true, []string{"read tls ca cert file", "file=/no/such"}},
		"interval":         {map[string]string{"OTEL_METRIC_EXPORT_INTERVAL": "60s"}, true, true, []string{"OTEL_METRIC_EXPORT_INTERVAL"}},
		"no interval":      {map[string]string{"OTEL_METRIC_EXPORT_INTERVAL": "0"}, true, true, []string{"OTEL_METRIC_EXPORT_INTERVAL"}},
		"links":            {map[string]string{"OTEL_SPAN_LINK_COUNT_LIMIT": "x"}, true, true, []string{"OTEL_SPAN_LINK_COUNT_LIMIT=x"}},
		"queue":            {map[string]string{"OTEL_BSP_MAX_QUEUE_SIZE": "-1"}, true, true, []string{"OTEL_BSP_ variables", "max_queue_size=2048"}},
		"larger queue":     {map[string]string{"OTEL_BSP_MAX_QUEUE_SIZE": "99999999999999"}, true, true, []string{"OTEL_BSP_ variables", "max_queue_size=2048"}},
		"batch":            {map[string]string{"OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "-1"}, true, true, []string{"OTEL_BSP_ variables", "max_export_batch_size=512"}},
		"no delay":         {map[string]string{"OTEL_BSP_SCHEDULE_DELAY": "0"}, true, true, []string{"OTEL_BSP_ variables", "schedule_delay=5s"}},
		"delay":            {map[string]string{"OTEL_BSP_SCHEDULE_DELAY": "5s"}, true, true, []string{"OTEL_BSP_SCHEDULE_DELAY=5s"}},
		"found later only": {map[string]string{"OTEL_METRICS_PRODUCERS": "x"}, true, false, []string{"signal=metrics", "producer"}},
	} {
		t.Run(name, func(t *testing.T) {
			set := map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": nowhere}
			maps.Copy(set, c.set)
			tel, log := mustStart(t, set)
			if (tel.Tracer != nil) != c.traces {
				t.Errorf("traces: %v\n%s", tel.Tracer != nil, log)
			}
			if said := fmt.Sprintf("traces=%v metrics=%v", c.traces, c.sends); (c.traces || c.sends) && !strings.Contains(log.String(), said) {
				t.Errorf("the log does not say %s:\n%s", said, log)
			}
			if _, body := scrape(tel, ""); !strings.Contains(body, "locksidecar_build_info") {
				t.Error("GET /metrics has no figures")
			}
			for _, want := range c.want {
				if !strings.Contains(log.String(), want) {
					t.Errorf("the log does not say %q:\n%s", want, log)
				}
			}
			if strings.Contains(log.String(), "s3cr3t") {
				t.Errorf("a secret is in the log:\n%s", log)
			}
		})
	}
}

// A URL's password and query may stand in an error.
func TestHide(t *testing.T) {
	for text, want := range map[string]string{
		`Post "http://u:p@c:1/v1?token=t": refused`: `Post "http://…@c:1/v1?…": refused`,
		`bad target dns:///ftp://u:p/q@c: no`:       `bad target dns://…@c: no`,
		`connection refused`:                        `connection refused`,
	} {
		if got := hide(text); got != want {
			t.Errorf("%s: %s", text, got)
		}
	}
}

// gRPC has addresses of its own kinds, and connects when there is something to send.
func TestGRPC(t *testing.T) {
	for _, endpoint := range []string{"http://127.0.0.1:1", "localhost:1", "dns:///localhost:1"} {
		tel, _ := mustStart(t, map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_METRICS_EXPORTER": "none"})
		if err := stop(t, tel, patience); err != nil {
			t.Errorf("%s: with nothing to send: %v", endpoint, err)
		}
	}
}

// A collector that takes connections and never answers slows nothing, and stops the end
// no longer than is allowed.
// Proves: threat hostile collector
func TestACollectorThatHangs(t *testing.T) {
	hangs, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = hangs.Close() }()
	before := goleak.IgnoreCurrent()
	tel, _ := mustStart(t, map[string]string{
		"OTEL_EXPORTER_OTLP_ENDPOINT": "http://" + hangs.Addr().String(),
		// Data that is not sent by the end is given up soon after, or the goroutine stays a
		// while.
		"OTEL_EXPORTER_OTLP_TIMEOUT": "200", "OTEL_BSP_EXPORT_TIMEOUT": "200",
		// If spans waited, each would for that long.
		"OTEL_BSP_MAX_QUEUE_SIZE": "4", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "1",
	})
	begin := time.Now()
	for range 10_000 { // more than the queue takes
		_, span := tel.Tracer.Start(t.Context(), "lock.acquire", trace.SpanKindServer)
		span.End()
	}
	if took := time.Since(begin); took > patience {
		t.Errorf("spans wait for the collector: %s", took)
	}
	begin = time.Now()
	// Less than it takes to give up all that is queued. It counts from when the end has begun:
	// a limit that is over before leaves goroutines behind.
	limit, reach := context.WithCancel(t.Context())
	defer reach()
	stopped := make(chan error, 1)
	go func() { stopped <- tel.Stop(limit) }()
	for late := begin.Add(patience); recording(t, tel) && time.Now().Before(late); {
		time.Sleep(time.Millisecond) // the pause of a poll
	}
	time.AfterFunc(400*time.Millisecond, reach)
	if err := <-stopped; !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	if took := time.Since(begin); took > 5*time.Second {
		t.Errorf("the end waits for the collector: %s", took)
	}
	// Errors go to who started last: none of this test's may come in the next one.
	for late := time.Now().Add(patience); ; {
		err := goleak.Find(before)
		if err == nil {
			return
		}
		if time.Now().After(late) {
			t.Fatal(err)
		}
	}
}

// recording says whether spans are still made: none are once the end has begun.
func recording(t *testing.T, tel *Telemetry) bool {
	t.Helper()
	_, span := tel.Tracers.Tracer("test").Start(t.Context(), "asked")
	defer span.End()
	return span.IsRecording()
}

// Nor does one whose exporter does not care how long it may take.
func TestAnExporterThatHangs(t *testing.T) {
	release, stopped := make(chan struct{}), make(chan error, 1)
	defer close(release)
	limit, reach := context.WithCancel(t.Context())
	tel := &Telemetry{stops: []func(context.Context) error{
		func(context.Context) error { <-release; return nil },
		func(context.Context) error { reach(); return nil }, // the limit comes when the other one has sent
	}}
	go func() { stopped <- tel.Stop(limit) }()
	select {
	case err := <-stopped:
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	case <-time.After(patience):
		t.Error("the end waits for the exporter, or the other one has not sent")
	}
}

func TestErrorsAreLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &logtest.Log{}
		report(slog.New(slog.NewTextHandler(log, nil)))
		defer handleErrors(func(error) {})
		for range 100 {
			otel.Handle(errors.New("connection refused"))
		}
		if n := strings.Count(log.String(), "telemetry has a problem"); n != errorBurst {
			t.Errorf("%d lines", n)
		}
		time.Sleep(errorPause)
		otel.Handle(errors.New("connection refused"))
		const want = `level=WARN msg="telemetry has a problem; locks are not affected" error="connection refused" errors_left_out=97`
		if !strings.Contains(log.String(), want) {
			t.Errorf("no %s in\n%s", want, log)
		}
		// A collector says what it likes.
		time.Sleep(errorPause)
		before := len(log.String())
		otel.Handle(errors.New("body: " + strings.Repeat("x", 1<<20)))
		if n := len(log.String()) - before; n < maxError || n > 2*maxError {
			t.Errorf("a line of %d bytes", n)
		}
	})
}

func TestLevelsOfOpenTelemetry(t *testing.T) {
	log := &logtest.Log{}
	l := logr.New(theirLog{slog.New(slog.NewTextHandler(log, nil))})
	for _, verbosity := range []int{1, 4, 8} {
		l.V(verbosity).Info("theirs", "verbosity", verbosity)
	}
	l.Error(nil, "broken")
	got := log.String()
	if strings.Count(got, "\n") != 2 || !strings.Contains(got, `level=WARN msg=OpenTelemetry message=theirs verbosity=1`) ||
		!strings.Contains(got, "level=ERROR msg=OpenTelemetry message=broken") {
		t.Error(got)
	}
}

// A value that the standard allows is no warning.
func TestGoodValues(t *testing.T) {
	_, log := mustStart(t, map[string]string{
		"OTEL_SDK_DISABLED": "False", "OTEL_EXPORTER_OTLP_ENDPOINT": newReceiver(t).URL,
		"OTEL_EXPORTER_OTLP_HEADERS": "Authorization=Basic%20czNjcjN0Og==, x-scope = orders", "OTEL_EXPORTER_OTLP_TIMEOUT": " 10000 ", "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
		"OTEL_EXPORTER_OTLP_TRACES_COMPRESSION": "none",
		"OTEL_METRIC_EXPORT_INTERVAL":           "60000", "OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT": "-1", "OTEL_BSP_MAX_QUEUE_SIZE": "2048",
		"OTEL_METRICS_EXEMPLAR_FILTER": "always_on",
	})
	if strings.Contains(log.String(), "WARN") || strings.Contains(log.String(), "ERROR") {
		t.Error(log)
	}
}

func TestWarnings(t *testing.T) {
	_, log := mustStart(t, map[string]string{
		"OTEL_EXPORTER_OTLP_ENDPOINT": newReceiver(t).URL, "OTEL_PROPAGATORS": "b3",
		"OTEL_METRICS_PRODUCERS": "none", "OTEL_RESOURCE_ATTRIBUTES": "nonsense",
	})
	for _, want := range []string{"OTEL_PROPAGATORS is ignored", "value=b3", "OTEL_METRICS_PRODUCERS leaves out", "OTEL_RESOURCE_ATTRIBUTES is not understood"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log does not say %q:\n%s", want, log)
		}
	}
	if strings.Contains(log.String(), "has a problem") {
		t.Errorf("nothing has been sent yet:\n%s", log)
	}
}

// The sampler that is made here is the one that OpenTelemetry would make of the same variables, or none if it would complain.
func TestSampler(t *testing.T) {
	for _, tt := range []struct{ name, arg, want string }{
		{"", "", sdktrace.ParentBased(sdktrace.AlwaysSample()).Description()},
		{" Always_On ", "", "AlwaysOnSampler"},
		{"always_off", "x", "AlwaysOffSampler"},
		{"traceidratio", "", "TraceIDRatioBased{1}"},
		{"traceidratio", " 0.25 ", "TraceIDRatioBased{0.25}"},
		{"parentbased_always_off", "", sdktrace.ParentBased(sdktrace.NeverSample()).Description()},
		{"parentbased_traceidratio", "0.01", sdktrace.ParentBased(sdktrace.TraceIDRatioBased(0.01)).Description()},
		{"traceidratio", "10%", ""},
		{"traceidratio", "-1", ""},
		{"parentbased_traceidratio", "1.1", ""},
		{"traceidratio", "NaN", ""},
		{"parentbased_jaeger_remote", "", ""},
		{"parentbased_", "", ""},
	} {
		vars := map[string]string{"OTEL_TRACES_SAMPLER": tt.name, "OTEL_TRACES_SAMPLER_ARG": tt.arg}
		got := ""
		if s := (env{lookup: func(name string) (string, bool) { v, ok := vars[name]; return v, ok }}).sampler(); s != nil {
			got = s.Description()
		}
		if got != tt.want {
			t.Errorf("%q, %q: %s, want %s", tt.name, tt.arg, got, tt.want)
		}
	}
}
