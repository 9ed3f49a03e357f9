package proxy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/baggage"
	"go.opentelemetry.io/otel/codes"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/locksidecar/locksidecar/internal/tracing"
	"github.com/locksidecar/locksidecar/lease"
	"github.com/locksidecar/locksidecar/proxy/internal/wire"
	"github.com/locksidecar/locksidecar/store"
)

const (
	appTrace  = "4bf92f3577b34da6a3ce929d0e0e4736"
	appSpan   = "00f067aa0ba902b7"
	appParent = "00-" + appTrace + "-" + appSpan + "-01"
	appHeader = "traceparent: " + appParent
)

// traced starts a server that makes spans. They are there before the answer is.
func traced(t *testing.T, change ...func(*Config)) (*fixture, *tracetest.InMemoryExporter) {
	t.Helper()
	exporter := tracetest.NewInMemoryExporter()
	provider := sdk.NewTracerProvider(sdk.WithSyncer(exporter))
	change = append([]func(*Config){func(c *Config) {
		c.Tracer = tracing.New(provider, tracing.Namespace.String("test"))
	}}, change...)
	return start(t, change...), exporter
}

// only is the one span that has ended since the last time.
func only(t *testing.T, e *tracetest.InMemoryExporter) tracetest.SpanStub {
	t.Helper()
	spans := e.GetSpans()
	e.Reset()
	if len(spans) != 1 {
		t.Fatalf("%d spans: %v", len(spans), spans)
	}
	return spans[0]
}

func attributesOf(attrs []attribute.KeyValue) map[string]string {
	all := make(map[string]string)
	for _, a := range attrs {
		all[string(a.Key)] = a.Value.String()
	}
	return all
}

// Each call of a lock is a span, a child of the app's. Its attributes are these and
// no others: data and results are nobody's business.
// Proves: threat telemetry reader
func TestEachCallHasSpan(t *testing.T) {
	f, exporter := traced(t, func(c *Config) { c.AllowForce = true })
	c, stranger := f.dial(), f.dial()
	_, id := f.explicit()
	const secret = `{"secret":1}`
	const key, keyRoute = "lock.key=a:1 lock.type=a", "http.route=/v1/locks/{key}"
	for i, tt := range []struct {
		c                    *client
		method, target, body string
		headers              []string
		status               int
		name, attrs          string
	}{
		{
			c, "PUT", "/v1/locks/a:1", `{"data":` + secret + `,"owner":"o","reentrant":true}`, nil, 200, "lock.acquire",
			key + " " + keyRoute + " lock.result=granted lock.token=1 lock.bind=session lock.mode=exclusive lock.session=public-2 lock.wait_ms=0 lock.ttl_ms=15000",
		},
		{
			c, "PUT", "/v1/locks/a:1", `{"wait_ms":-1,"ttl_ms":700,"owner":"o","reentrant":true}`, nil, 200, "lock.acquire",
			key + " " + keyRoute + " lock.result=reentered lock.reentry=2 lock.token=1 lock.bind=session lock.mode=exclusive lock.session=public-2 lock.wait_ms=-1 lock.ttl_ms=700",
		},
		{
			stranger, "PUT", "/v1/locks/a:1", `{"wait_ms":1,"bind":"ttl"}`, nil, 423, "lock.acquire",
			key + " " + keyRoute + " lock.result=wait_timeout lock.bind=ttl lock.mode=exclusive lock.wait_ms=1 lock.ttl_ms=15000",
		},
		{stranger, "GET", "/v1/locks/a:1", "", nil, 200, "lock.get", key + " " + keyRoute},
		{stranger, "GET", "/v1/locks?prefix=a", "", []string{"Lock-Session: " + id}, 200, "lock.list", "http.route=/v1/locks lock.session=public-1"},
		{stranger, "POST", "/v1/locks/a:1/stop", `{"reason":"secret"}`, nil, 202, "lock.stop", key + " http.route=/v1/locks/{key}/stop"},
		{
			c, "PATCH", "/v1/locks/a:1", `{"token":1,"data":` + secret + `}`, nil, 200, "lock.amend",
			key + " " + keyRoute + " lock.token=1 lock.session=public-2 lock.result=granted lock.reentry=2",
		},
		{
			c, "POST", "/v1/locks/a:1/release", `{"token":1}`, nil, 200, "lock.release",
			key + " http.route=/v1/locks/{key}/release lock.token=1 lock.session=public-2 lock.result=reentered",
		},
		{
			c, "DELETE", "/v1/locks/a:1?token=1&outcome=success", `{"result":` + secret + `}`, nil, 200, "lock.release",
			key + " " + keyRoute + " lock.token=1 lock.session=public-2 lock.result=released lock.outcome=success",
		},
		{
			c, "POST", "/v1/locks", `{"keys":["a:2","a:1"]}`, nil, 200, "lock.acquire",
			`http.route=/v1/locks lock.keys=["a:2","a:1"] lock.key_count=2 lock.type=a lock.result=granted lock.bind=session lock.mode=exclusive lock.session=public-2 lock.wait_ms=0 lock.ttl_ms=15000`,
		},
		{
			stranger, "POST", "/v1/locks", `{"keys":["a:1","b:1"],"bind":"ttl"}`, nil, 423, "lock.acquire",
			`http.route=/v1/locks lock.keys=["a:1","b:1"] lock.key_count=2 lock.result=held lock.bind=ttl lock.mode=exclusive lock.wait_ms=0 lock.ttl_ms=15000`,
		},
		{stranger, "DELETE", "/v1/locks/a:1?force=true", "", nil, 200, "lock.force", key + " " + keyRoute + " lock.result=released"},
		{ // it belongs to no session, whoever asks for it
			stranger, "PUT", "/v1/locks/cron", `{"bind":"ttl","ttl_ms":60000}`,
			[]string{"Lock-Session: " + id},
			200, "lock.acquire",
			"lock.key=cron " + keyRoute + " lock.result=granted lock.token=4 lock.bind=ttl lock.mode=exclusive lock.wait_ms=0 lock.ttl_ms=60000",
		},
		{stranger, "GET", "/v1/locks/plain", "", nil, 200, "lock.get", "lock.key=plain " + keyRoute},
		{stranger, "PUT", "/v1/locks/a:1", `{"bind":secret}`, nil, 400, "lock.acquire", key + " " + keyRoute + " lock.result=invalid_request"},
	} {
		a := tt.c.do(tt.method, tt.target, tt.body, append(tt.headers, appHeader)...)
		if a.StatusCode != tt.status {
			t.Fatal(i, a.text)
		}
		span := only(t, exporter)
		want := map[string]string{
			"http.request.method": tt.method, "http.response.status_code": fmt.Sprint(tt.status),
			"network.transport": "unix", "lock.namespace": "test",
		}
		for part := range strings.FieldsSeq(tt.attrs) {
			name, value, _ := strings.Cut(part, "=")
			want[name] = value
		}
		if got := attributesOf(span.Attributes); !maps.Equal(got, want) {
			t.Errorf("%d %s: the attributes are\n%v, want\n%v", i, tt.name, got, want)
		}
		if span.Name != tt.name || span.SpanKind != trace.SpanKindServer || span.Status.Code != codes.Unset {
			t.Error(i, span.Name, span.SpanKind, span.Status)
		}
		if !span.Parent.IsRemote() || tracing.Format(span.Parent) != appParent || span.SpanContext.TraceID().String() != appTrace {
			t.Error(i, span.Parent, span.SpanContext)
		}
	}
}

// A span lasts until its call is answered, whatever happens. A failure of the sidecar is an
// error; a lock that the app did not get is none.
func TestSpansOfFailures(t *testing.T) {
	f, exporter := traced(t, func(c *Config) { c.TCPAddr = "127.0.0.1:0" })
	for err, want := range map[error]string{
		error(&store.Error{Op: "acquire", Err: errors.New("away")}): wire.CodeStoreUnavailable,
		lease.ErrDraining:          wire.CodeDraining,
		errors.New("what is that"): wire.CodeInternal,
		errPanic:                   wire.CodeInternal,
		error(&lease.LimitError{What: "x", Limit: 1}):   "",
		error(&lease.LostError{Lost: lease.Lost{}}):     "",
		error(&lease.SkippedError{Key: "a"}):            "",
		error(&lease.HeldError{Lock: store.Lock{}}):     "",
		error(&lease.NotHolderError{Reason: "whoever"}): "",
	} {
		f.locks.hook = func(string, string) error {
			if errors.Is(err, errPanic) {
				panic("a bug")
			}
			return err
		}
		c := dialTo(t, "tcp", f.TCPAddr().String())
		c.undocumented = true
		a := c.do("PUT", "/v1/locks/a", `{"bind":"ttl"}`)
		span := only(t, exporter)
		got := attributesOf(span.Attributes)
		code, _ := a.json["code"].(string)
		switch {
		case want != "" && (span.Status.Code != codes.Error || got["error.type"] != want || got["lock.result"] != want):
			t.Error(err, span.Status, got)
		case want == "" && (span.Status.Code != codes.Unset || got["error.type"] != ""):
			t.Error(err, span.Status, got)
		case want == "" && code == "" && got["lock.result"] != "skipped":
			t.Error(err, got)
		case code != "" && got["lock.result"] != code, got["http.response.status_code"] != fmt.Sprint(a.StatusCode):
			t.Error(err, a.text, got)
		case span.Parent.IsValid(), got["network.transport"] != "tcp", !span.EndTime.After(span.StartTime):
			t.Error(err, span)
		}
	}
	f.locks.hook = nil
	c := f.dial() // the span of a call that failed is not that of the next one
	c.do("GET", "/v1/locks/a", "").want(t, 200, "")
	if got := only(t, exporter); got.Status.Code != codes.Unset {
		t.Error(got.Status)
	}
	for _, target := range []string{"/v1", "/healthz", "/v1/stats", "/v1/locks/a/b", "/nothing", "/v1/locks/%zz"} {
		c.do("GET", target, "", appHeader)
	}
	_, id := f.explicit()
	f.watch("a")
	c.do("DELETE", "/v1/sessions/"+id, "").want(t, 200, "")
	if spans := exporter.GetSpans(); len(spans) != 0 {
		t.Error("spans of calls that are not about locks, or of streams:", spans)
	}
}

var errPanic = errors.New("panic")

// The traceparent that package lease gets, and so the row in the store, leads to the call's
// own span.
func TestCallSpanIsPropagated(t *testing.T) {
	f, exporter := traced(t)
	var seen trace.SpanContext
	var user string
	f.locks.onContext = func(_ string, ctx context.Context) {
		seen, user = trace.SpanContextFromContext(ctx), baggage.FromContext(ctx).Member("user").Value()
	}
	c := f.dial()
	headers := []string{appHeader, "tracestate: a=1", "TraceState: b=2", "baggage: user=ann,x=1", "Baggage: y=2"}
	for _, tt := range []struct {
		method, target, body string
		got                  *string
	}{
		{"PUT", "/v1/locks/a", "", &f.locks.last.Traceparent},
		{"PATCH", "/v1/locks/a", `{"token":1}`, &f.locks.amended.Traceparent},
		{"GET", "/v1/locks/a", "", nil},
		{"GET", "/v1/locks", "", nil},
		{"POST", "/v1/locks/a/stop", "", nil},
		{"DELETE", "/v1/locks/a?token=1", "", &f.locks.released.Traceparent},
		{"POST", "/v1/locks", `{"keys":["b","c"]}`, &f.locks.last.Traceparent},
	} {
		seen, user = trace.SpanContext{}, ""
		c.do(tt.method, tt.target, tt.body, headers...)
		span := only(t, exporter)
		f.locks.mu.Lock()
		if tt.got != nil && *tt.got != tracing.Format(span.SpanContext) {
			t.Errorf("%s %s: handed on %q, the span is %v", tt.method, tt.target, *tt.got, span.SpanContext)
		}
		f.locks.mu.Unlock()
		if !seen.Equal(span.SpanContext) || user != "ann" || seen.TraceState().String() != "a=1,b=2" {
			t.Error(tt.method, tt.target, seen, user, seen.TraceState())
		}
	}
}

// Without a tracer what the app sent is handed on as it came, and costs nothing.
func TestNoSpansWithoutATracer(t *testing.T) {
	f := start(t)
	f.locks.onContext = func(op string, ctx context.Context) {
		if trace.SpanFromContext(ctx).SpanContext().IsValid() || baggage.FromContext(ctx).Len() > 0 {
			t.Error(op, "there is a span or baggage")
		}
	}
	c := f.dial()
	c.do("PUT", "/v1/locks/a", "", appHeader, "Baggage: a=1").want(t, 200, "")
	c.do("PATCH", "/v1/locks/a", `{"token":1}`, appHeader).want(t, 200, "")
	c.do("DELETE", "/v1/locks/a?token=1", "", appHeader).want(t, 200, "")
	for _, got := range []string{f.locks.last.Traceparent, f.locks.amended.Traceparent, f.locks.released.Traceparent} {
		if got != appParent {
			t.Errorf("handed on %q", got)
		}
	}
	c.do("PUT", "/v1/locks/b", "").want(t, 200, "") // nothing is left of the call before
	if got := f.locks.last.Traceparent; got != "" {
		t.Error(got)
	}

	k := &call{srv: f.Server}
	r, g := lease.Request{}, lease.Grant{}
	if n := testing.AllocsPerRun(100, func() {
		k.startSpan(spanAcquire, routeKey, "key")
		k.span.setAcquire(&r, nil, 0)
		k.span.granted([]lease.Grant{g})
		k.span.setProblem(wire.CodeHeld)
		k.span.end(200)
	}); n != 0 || k.span != nil {
		t.Error(n, k.span)
	}
}

// A malformed header counts as absent, and the rest still counts.
// Proves: threat trace headers
func TestMalformedTraceHeaders(t *testing.T) {
	f, exporter := traced(t)
	state := func(length int) string { // three members, for each has 256 bytes at most
		part := length/3 - len("a=,")
		return "a=" + strings.Repeat("x", part) + ",b=" + strings.Repeat("x", part) + ",c=" + strings.Repeat("x", length-2*(part+3)-2)
	}
	var members int
	f.locks.onContext = func(_ string, ctx context.Context) { members = baggage.FromContext(ctx).Len() }
	for _, tt := range []struct {
		headers      []string
		parent       bool
		state        string
		baggageCount int
	}{
		{[]string{"traceparent: nonsense", "baggage: a=1"}, false, "", 1},
		{[]string{appHeader, appHeader}, false, "", 0},
		{[]string{appHeader, strings.Replace(appHeader, "00f0", "11f0", 1), "tracestate: a=1"}, false, "", 0},
		{[]string{appHeader, "tracestate: !!!"}, true, "", 0},
		{[]string{appHeader, "tracestate: a=1,a=2"}, true, "", 0},
		{[]string{appHeader, "tracestate: " + state(maxState)}, true, state(maxState), 0},
		{[]string{appHeader, "tracestate: " + state(maxState+1)}, true, "", 0},
		{[]string{appHeader, "tracestate: d=1", "tracestate: " + state(maxState-len("d=1"))}, true, "", 0},
		{[]string{"tracestate: a=1"}, false, "", 0},
		{[]string{appHeader, "tracestate: a=1", "baggage: a=1,=;;;=,"}, true, "a=1", 0},
		{[]string{appHeader, "baggage: " + strings.Repeat("a=1,", 100) + "b=2"}, true, "", 2},
		{[]string{strings.Replace(appHeader, appTrace, strings.Repeat("0", 32), 1)}, false, "", 0},
		{[]string{strings.ToUpper(appHeader)}, false, "", 0},
	} {
		f.dial().do("GET", "/v1/locks/a", "", tt.headers...).want(t, 200, "")
		span := only(t, exporter)
		if span.Parent.IsValid() != tt.parent || span.Parent.TraceState().String() != tt.state || members != tt.baggageCount {
			t.Errorf("%.200q: parent %v, state %v, %d in the baggage", tt.headers, span.Parent, span.Parent.TraceState(), members)
		}
	}
	plain := start(t) // without a tracer, too, of two nobody knows which counts
	plain.dial().do("PUT", "/v1/locks/a", "", appHeader, appHeader).want(t, 200, "")
	if got := plain.locks.last.Traceparent; got != "" {
		t.Error(got)
	}
}

// A call that is not recorded hands on the trace of its app, and makes up none.
func TestUnrecordedSpans(t *testing.T) {
	exporter := tracetest.NewInMemoryExporter()
	provider := sdk.NewTracerProvider(sdk.WithSyncer(exporter), sdk.WithSampler(sdk.NeverSample()))
	for name, tracer := range map[string]*tracing.Tracer{"the SDK decides": tracing.New(provider), "decided before": samplingTracer(provider, sdk.NeverSample())} {
		t.Run(name, func(t *testing.T) {
			f := start(t, func(c *Config) { c.Tracer, c.AllowForce = tracer, true })
			f.locks.onContext = func(op string, ctx context.Context) {
				// The log line of a request to stop names the trace of its context.
				if sc := trace.SpanContextFromContext(ctx); (op == "stop") != (sc.TraceID().String() == appTrace) || sc.IsValid() && op != "stop" {
					t.Error(op, sc)
				}
			}
			c := f.dial()
			c.do("PUT", "/v1/locks/a", "", appHeader).want(t, 200, "")
			if got := f.locks.last.Traceparent; got != appParent {
				t.Error(got)
			}
			c.do("PUT", "/v1/locks/b", "").want(t, 200, "")
			if got := f.locks.last.Traceparent; got != "" {
				t.Error(got)
			}
			c.do("POST", "/v1/locks/a/stop", "", appHeader).want(t, 202, "")
			c.do("DELETE", "/v1/locks/a?force=true", "", appHeader).want(t, 200, "")
			if log := f.log.text(); !strings.Contains(log, "is being broken\" trace_id="+appTrace) {
				t.Error(log)
			}
			if spans := exporter.GetSpans(); len(spans) != 0 {
				t.Error(spans)
			}
		})
	}
}

func samplingTracer(p trace.TracerProvider, s sdk.Sampler) *tracing.Tracer {
	tracer := tracing.New(p)
	tracer.SampleBy(s)
	return tracer
}

// A call that is not sampled costs the parse of its header: nothing is allocated for its span.
func TestUnsampledCallAllocatesNothing(t *testing.T) {
	for name, sampler := range map[string]sdk.Sampler{
		"follows the app": sdk.ParentBased(sdk.NeverSample()), "ratio": sdk.ParentBased(sdk.TraceIDRatioBased(1e-18)), "never": sdk.NeverSample(),
	} {
		provider := sdk.NewTracerProvider(sdk.WithSampler(sampler))
		k := &call{srv: &Server{cfg: Config{Tracer: samplingTracer(provider, sampler)}}}
		for _, header := range []string{"", strings.TrimSuffix(appParent, "1") + "0", "malformed"} {
			k.trace, k.traces = []byte(header), min(len(header), 1)
			r, all, gone := lease.Request{}, make([]lease.Grant, 1), lease.Released{}
			if n := testing.AllocsPerRun(100, func() {
				k.startSpan(spanAcquire, routeKey, "key")
				k.span.setAcquire(&r, nil, 0)
				k.span.setClaim(1, nil)
				k.span.granted(all)
				k.span.released(&gone)
				k.span.setProblem(wire.CodeHeld)
				k.span.end(200)
			}); n != 0 || k.span != nil {
				t.Errorf("%s, %q: %v allocations", name, header, n)
			}
		}
	}
}

// The part behind the known one may be anything. The store is not asked to keep it.
// Proves: threat trace headers
func TestTraceparentSuffixIsDropped(t *testing.T) {
	const known = "4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	f := start(t)
	c := f.dial()
	for i, rest := range []string{"-what-the-future-brings", "-\xff\xfe", "-" + strings.Repeat("x", 10_000)} {
		key := fmt.Sprintf("/v1/locks/a%d", i)
		c.do("PUT", key, "", "traceparent: 01-"+known+rest).want(t, 200, "")
		if got := f.locks.last.Traceparent; got != "01-"+known {
			t.Errorf("%.40q: %.99q", rest, got)
		}
	}
}
