package telemetry

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/goleak"

	"github.com/locksidecar/locksidecar/internal/logtest"
	"github.com/locksidecar/locksidecar/internal/metrics"
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

// start sets the environment, for the exporters read that of the process, and starts.
func start(t *testing.T, variables map[string]string) (*Telemetry, *logtest.Log, error) {
	t.Helper()
	for name, value := range variables {
		t.Setenv(name, value)
	}
	log := &logtest.Log{}
	tel, err := Start(t.Context(), Options{
		Lookup: os.LookupEnv, Version: "1.2.3", Instance: "web-1-abcd", Pod: "web-1", Namespace: "orders",
		MaxLinks: 1000, Logger: slog.New(slog.NewTextHandler(log, nil)),
	})
	if tel != nil {
		t.Cleanup(func() { _ = stop(t, tel, time.Second) })
	}
	return tel, log, err
}

// patience is how long a test waits for what must happen.
const patience = 30 * time.Second

func stop(t *testing.T, tel *Telemetry, limit time.Duration) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return tel.Stop(ctx)
}

func mustStart(t *testing.T, variables map[string]string) (*Telemetry, *logtest.Log) {
	t.Helper()
	tel, log, err := start(t, variables)
	if err != nil {
		t.Fatal(err)
	}
	return tel, log
}

func TestWhatTurnsWhatOn(t *testing.T) {
	const endpoint = "OTEL_EXPORTER_OTLP_ENDPOINT"
	for name, c := range map[string]struct {
		set             map[string]string
		traces, figures bool
	}{
		"nothing":               {},
		"empty is unset":        {set: map[string]string{endpoint: "", "OTEL_TRACES_EXPORTER": "", "OTEL_METRICS_EXPORTER": ""}},
		"others only":           {set: map[string]string{"OTEL_SERVICE_NAME": "x", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}},
		"endpoint":              {map[string]string{endpoint: "http://c:4318"}, true, true},
		"traces' endpoint":      {map[string]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318"}, true, false},
		"metrics' endpoint":     {map[string]string{"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://c:4318"}, false, true},
		"traces' exporter":      {map[string]string{"OTEL_TRACES_EXPORTER": "otlp"}, true, false},
		"metrics' exporter":     {map[string]string{"OTEL_METRICS_EXPORTER": "otlp"}, false, true},
		"none, with endpoint":   {map[string]string{endpoint: "http://c:4318", "OTEL_TRACES_EXPORTER": "none"}, false, true},
		"none for both":         {map[string]string{endpoint: "http://c:4318", "OTEL_TRACES_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "none"}, false, false},
		"disabled":              {map[string]string{endpoint: "http://c:4318", "OTEL_SDK_DISABLED": "TRUE"}, false, false},
		"disabled, bad ignored": {map[string]string{endpoint: "nonsense", "OTEL_SDK_DISABLED": "true"}, false, false},
		"not disabled":          {map[string]string{endpoint: "http://c:4318", "OTEL_SDK_DISABLED": "false"}, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			e := env{lookup: func(name string) (string, bool) { v, ok := c.set[name]; return v, ok }}
			if err := e.check(); err != nil || e.on(traces) != c.traces || e.on(figures) != c.figures {
				t.Errorf("traces %v, metrics %v, %v", e.on(traces), e.on(figures), err)
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

// What one sidecar does arrives at a receiver, all of it by the time that it has
// stopped.
func TestSent(t *testing.T) {
	to := newReceiver(t)
	tel, log := mustStart(t, map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": to.URL})
	if !strings.Contains(log.String(), "traces=true metrics=true") {
		t.Error("the log does not say what is on:", log)
	}
	ctx, span := tel.Tracer.Start(t.Context(), "lock.acquire", trace.SpanKindServer, tracing.Key.String("k"))
	tel.Metrics.Locks.Acquired(ctx, "deploy:prod", metrics.Granted, 3*time.Second)
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
	wait := to.metrics["locksidecar.wait.duration"].GetHistogram().GetDataPoints()
	if len(wait) != 1 || wait[0].GetSum() != 3 || wait[0].GetCount() != 1 || words(wait[0].GetAttributes())["type"] != "deploy" {
		t.Fatalf("%v", wait)
	}
	if e := wait[0].GetExemplars(); len(e) != 1 || trace.TraceID(e[0].GetTraceId()) != traceID {
		t.Errorf("the exemplar leads elsewhere: %v", e)
	}
	if acquires := to.metrics["locksidecar.acquires"].GetSum(); !acquires.GetIsMonotonic() || acquires.GetDataPoints()[0].GetAsInt() != 1 {
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

func TestBadValues(t *testing.T) {
	const endpoint = "OTEL_EXPORTER_OTLP_ENDPOINT"
	for name, c := range map[string]struct {
		set  map[string]string
		want []string
	}{
		"exporter":       {map[string]string{"OTEL_TRACES_EXPORTER": "jaeger"}, []string{`OTEL_TRACES_EXPORTER is "jaeger"; allowed: otlp, console, none`}},
		"metrics' too":   {map[string]string{"OTEL_METRICS_EXPORTER": "statsd"}, []string{`OTEL_METRICS_EXPORTER is "statsd"; allowed: otlp, prometheus, console, none`}},
		"protocol":       {map[string]string{endpoint: "http://c", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}, []string{`OTEL_EXPORTER_OTLP_PROTOCOL is "http/json"; allowed: grpc, http/protobuf`}},
		"signal's own":   {map[string]string{endpoint: "http://c", "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": "udp"}, []string{`OTEL_EXPORTER_OTLP_METRICS_PROTOCOL is "udp"`}},
		"endpoint":       {map[string]string{endpoint: "collector:4318"}, []string{endpoint + ` is "collector:4318"; allowed: a URL with http or https, such as http://collector:4318`}},
		"password":       {map[string]string{endpoint: "ftp://u:secret@c:1"}, []string{`"…@c:1"`}},
		"sampler":        {map[string]string{"OTEL_TRACES_EXPORTER": "otlp", "OTEL_TRACES_SAMPLER": "half"}, []string{`OTEL_TRACES_SAMPLER is "half"; allowed: always_on`}},
		"ratio":          {map[string]string{"OTEL_TRACES_EXPORTER": "otlp", "OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "10%"}, []string{`OTEL_TRACES_SAMPLER_ARG is "10%"; allowed: a number from 0 to 1`}},
		"disabled":       {map[string]string{endpoint: "http://c", "OTEL_SDK_DISABLED": "yes"}, []string{`OTEL_SDK_DISABLED is "yes"; allowed: true, false`}},
		"timeout":        {map[string]string{endpoint: "http://c", "OTEL_EXPORTER_OTLP_TIMEOUT": "10s"}, []string{`OTEL_EXPORTER_OTLP_TIMEOUT is "10s"; allowed: a whole number from 0 to 86400000: milliseconds`}},
		"compression":    {map[string]string{endpoint: "http://c", "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION": "zip"}, []string{`OTEL_EXPORTER_OTLP_TRACES_COMPRESSION is "zip"; allowed: gzip, none`}},
		"header":         {map[string]string{endpoint: "http://c", "OTEL_EXPORTER_OTLP_HEADERS": "authorization: Bearer secret"}, []string{`OTEL_EXPORTER_OTLP_HEADERS is "…"; allowed: name=value`}},
		"header's name":  {map[string]string{endpoint: "http://c", "OTEL_EXPORTER_OTLP_HEADERS": "a=b, my secret=="}, []string{`OTEL_EXPORTER_OTLP_HEADERS is "…"`}},
		"header's value": {map[string]string{endpoint: "http://c", "OTEL_EXPORTER_OTLP_METRICS_HEADERS": "a=secret%"}, []string{`OTEL_EXPORTER_OTLP_METRICS_HEADERS is "…"`}},
		"certificate":    {map[string]string{endpoint: "http://c", "OTEL_EXPORTER_OTLP_CERTIFICATE": "/no/such"}, []string{`OTEL_EXPORTER_OTLP_CERTIFICATE is "/no/such"; allowed: a file that can be read (open /no/such`}},
		"interval":       {map[string]string{endpoint: "http://c", "OTEL_METRIC_EXPORT_INTERVAL": "60s"}, []string{`OTEL_METRIC_EXPORT_INTERVAL is "60s"; allowed: a whole number from 1 to 86400000: milliseconds`}},
		"no interval":    {map[string]string{endpoint: "http://c", "OTEL_METRIC_EXPORT_INTERVAL": "0"}, []string{`OTEL_METRIC_EXPORT_INTERVAL is "0"`}},
		"links":          {map[string]string{endpoint: "http://c", "OTEL_SPAN_LINK_COUNT_LIMIT": "x"}, []string{`OTEL_SPAN_LINK_COUNT_LIMIT is "x"; allowed: a whole number`}},
		"queue":          {map[string]string{endpoint: "http://c", "OTEL_BSP_MAX_QUEUE_SIZE": "-1"}, []string{`OTEL_BSP_MAX_QUEUE_SIZE is "-1"; allowed: a whole number from 1 to 1000000`}},
		"larger queue":   {map[string]string{endpoint: "http://c", "OTEL_BSP_MAX_QUEUE_SIZE": "99999999999999"}, []string{`OTEL_BSP_MAX_QUEUE_SIZE is "99999999999999"`}},
		"batch":          {map[string]string{endpoint: "http://c", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "-1"}, []string{`OTEL_BSP_MAX_EXPORT_BATCH_SIZE is "-1"`}},
		"no delay":       {map[string]string{endpoint: "http://c", "OTEL_BSP_SCHEDULE_DELAY": "0"}, []string{`OTEL_BSP_SCHEDULE_DELAY is "0"`}},
		"once each": {map[string]string{
			endpoint: "http://c", "OTEL_EXPORTER_OTLP_TIMEOUT": "1s", "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT": "2s", "OTEL_EXPORTER_OTLP_METRICS_TIMEOUT": "3s",
		}, []string{"OTLP_TIMEOUT", "OTLP_TRACES_TIMEOUT", "OTLP_METRICS_TIMEOUT"}},
		"delay":            {map[string]string{endpoint: "http://c", "OTEL_BSP_SCHEDULE_DELAY": "5s"}, []string{`OTEL_BSP_SCHEDULE_DELAY is "5s"`}},
		"exemplars":        {map[string]string{endpoint: "http://c", "OTEL_METRICS_EXEMPLAR_FILTER": "all"}, []string{`OTEL_METRICS_EXEMPLAR_FILTER is "all"; allowed: trace_based, always_on, always_off`}},
		"endpoint of all":  {map[string]string{endpoint: "http://u:secret@c:x", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c", "OTEL_METRICS_EXPORTER": "none"}, []string{endpoint + ` is "…@c:x"`}},
		"all at once":      {map[string]string{"OTEL_TRACES_EXPORTER": "a", "OTEL_METRICS_EXPORTER": "b"}, []string{"OTEL_TRACES_EXPORTER", "OTEL_METRICS_EXPORTER"}},
		"found later only": {map[string]string{"OTEL_METRICS_EXPORTER": "otlp", "OTEL_METRICS_PRODUCERS": "x"}, []string{`OTEL_METRICS_EXPORTER is "otlp"`, "producer"}},
	} {
		t.Run(name, func(t *testing.T) {
			tel, _, err := start(t, c.set)
			if err == nil || tel != nil {
				t.Fatal("it starts")
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
					t.Errorf("%q does not say %q", err, want)
				}
			}
			if strings.Count(err.Error(), endpoint) > 1 {
				t.Errorf("said twice: %q", err)
			}
		})
	}
}

// A header is often a password, and so is what somebody took for one.
func TestBadHeadersAreNotShown(t *testing.T) {
	for _, value := range []string{
		"Authorization: Bearer s3cr3t", "Authorization=Bearer %zzs3cr3t", "x=1,s3cr3t", "s3cr3t of ours=1", "=s3cr3t",
	} {
		for _, name := range []string{"OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_METRICS_HEADERS"} {
			_, log, err := start(t, map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", name: value})
			if err == nil || !strings.HasPrefix(err.Error(), name+" is ") || strings.Contains(err.Error(), "s3cr3t") {
				t.Errorf("%s=%s: %v", name, value, err)
			}
			if strings.Contains(log.String(), "s3cr3t") {
				t.Errorf("%s=%s: %s", name, value, log)
			}
			t.Setenv(name, "")
		}
	}
	mustStart(t, map[string]string{
		"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_EXPORTER_OTLP_HEADERS": "Authorization=Basic%20czNjcjN0Og==, x-scope = orders",
	})
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
func TestACollectorThatHangs(t *testing.T) {
	hangs, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = hangs.Close() }()
	before := goleak.IgnoreCurrent()
	tel, _ := mustStart(t, map[string]string{
		"OTEL_EXPORTER_OTLP_ENDPOINT": "http://" + hangs.Addr().String(),
		// What is not sent by the end is given up soon after, or the goroutine stays a while.
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
		if n := strings.Count(log.String(), "telemetry was not delivered"); n != errorBurst {
			t.Errorf("%d lines", n)
		}
		time.Sleep(errorPause)
		otel.Handle(errors.New("connection refused"))
		const want = `level=WARN msg="telemetry was not delivered, locks go on" error="connection refused" errors_left_out=97`
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
	l := slog.New(levels{slog.NewTextHandler(log, nil)})
	for _, verbosity := range []slog.Level{1, 4, 8} {
		l.Log(t.Context(), -verbosity, "theirs", "verbosity", int(verbosity))
	}
	l.Error("broken")
	got := log.String()
	if strings.Count(got, "\n") != 2 || !strings.Contains(got, `level=WARN msg=OpenTelemetry message=theirs verbosity=1`) ||
		!strings.Contains(got, "level=ERROR msg=OpenTelemetry message=broken") {
		t.Error(got)
	}
}

// What the standard allows is not refused.
func TestGoodValues(t *testing.T) {
	ca := t.TempDir() + "/ca.pem"
	if err := os.WriteFile(ca, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	values := map[string]string{
		"OTEL_SDK_DISABLED": "False", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318",
		"OTEL_EXPORTER_OTLP_HEADERS": " api-key = a%20b==,x=, ", "OTEL_EXPORTER_OTLP_TIMEOUT": " 10000 ", "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
		"OTEL_EXPORTER_OTLP_TRACES_COMPRESSION": "none", "OTEL_EXPORTER_OTLP_CERTIFICATE": ca,
		"OTEL_METRIC_EXPORT_INTERVAL": "60000", "OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT": "-1", "OTEL_BSP_MAX_QUEUE_SIZE": "2048",
		"OTEL_METRICS_EXEMPLAR_FILTER": "always_on",
	}
	e := env{lookup: func(name string) (string, bool) { value, ok := values[name]; return value, ok }}
	if err := e.check(); err != nil {
		t.Error(err)
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
	if strings.Contains(log.String(), "not delivered") {
		t.Errorf("nothing has been sent yet:\n%s", log)
	}
}
