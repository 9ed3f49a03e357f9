package lease

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/locksidecar/locksidecar/internal/tracing"
	"github.com/locksidecar/locksidecar/lease/internal/holdings"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// handOffs stores which release handed a key over, for stores that do not.
type handOffs struct {
	mu sync.Mutex
	by map[string]string
}

// grantedAgo is the duration of a hand-off that handOffs reports.
const grantedAgo = 7 * time.Millisecond

func (ho *handOffs) note(claims []store.Claim) {
	if ho == nil {
		return
	}
	ho.mu.Lock()
	defer ho.mu.Unlock()
	for _, c := range claims {
		ho.by[c.Key] = c.Traceparent
	}
}

func (ho *handOffs) tell(key string, ans *store.Answer) {
	if ho == nil || ans.Outcome != store.Granted {
		return
	}
	ho.mu.Lock()
	defer ho.mu.Unlock()
	ans.HandedBy, ans.GrantedFor = ho.by[key], grantedAgo
}

// who names the app that made a call in a test.
const who = attribute.Key("who")

// spans records the spans of several sidecars. It makes the spans of calls like package proxy.
type spans struct {
	t        *testing.T
	exporter *tracetest.InMemoryExporter
	tracer   *tracing.Tracer
	handOffs handOffs
}

func newSpans(t *testing.T, opts ...sdktrace.TracerProviderOption) *spans {
	sp := &spans{t: t, exporter: tracetest.NewInMemoryExporter(), handOffs: handOffs{by: map[string]string{}}}
	sp.tracer = tracing.New(sdktrace.NewTracerProvider(append(opts, sdktrace.WithSyncer(sp.exporter))...))
	return sp
}

// opt makes a sidecar trace.
func (sp *spans) opt() option { return with(func(c *types.Config) { c.Tracer = sp.tracer }) }

// on starts a sidecar that traces.
func (sp *spans) on(opts ...option) *rig {
	r := newRig(sp.t, append(opts, sp.opt())...)
	r.st.handOffs = &sp.handOffs
	return r
}

// beside starts another sidecar on the same store.
func (sp *spans) beside(r *rig, opts ...option) *rig {
	other := r.another(append(opts, sp.opt())...)
	other.st.handOffs = &sp.handOffs
	return other
}

// appCall is the span of an app's call.
type appCall struct {
	ctx  context.Context
	span trace.Span
	// parent is the trace context that package proxy puts into requests.
	parent string
}

func (sp *spans) call(ctx context.Context, name, app string) appCall {
	ctx, span := sp.tracer.Start(ctx, name, trace.SpanKindServer, who.String(app))
	return appCall{ctx, span, tracing.Format(span.SpanContext())}
}

// ask acquires for an app beside the test.
func (sp *spans) ask(ctx context.Context, r *rig, app string, s *holdings.Session, req types.Request) *answer {
	c := sp.call(ctx, "lock.acquire", app)
	req.Traceparent = c.parent
	a := &answer{done: make(chan struct{})}
	go func() {
		defer close(a.done)
		a.g, a.err = r.m.Acquire(c.ctx, s, req)
		c.span.End()
	}()
	return a
}

func (sp *spans) acquire(r *rig, app string, s *holdings.Session, req types.Request) types.Grant {
	sp.t.Helper()
	return sp.ask(context.Background(), r, app, s, req).granted(sp.t)
}

func (sp *spans) release(r *rig, app string, s *holdings.Session, req types.ReleaseRequest) {
	sp.t.Helper()
	c := sp.call(context.Background(), "lock.release", app)
	defer c.span.End()
	req.Traceparent = c.parent
	_, err := r.m.Release(c.ctx, s, req)
	r.must(err)
}

// shown are the attributes in the trees.
var shown = []attribute.Key{
	who, tracing.Operation, tracing.BatchSize, tracing.Key, tracing.Token, tracing.Position, tracing.Result, tracing.GrantedBy,
	tracing.HolderPod, tracing.EndReason,
}

// tree returns all ended spans as a tree, with their links.
func (sp *spans) tree() string {
	stubs := sp.exporter.GetSpans()
	byID := map[trace.SpanID]tracetest.SpanStub{}
	children := map[trace.SpanID][]tracetest.SpanStub{}
	for _, s := range stubs {
		byID[s.SpanContext.SpanID()] = s
		if p := s.Parent; p.IsValid() && p.TraceID() != s.SpanContext.TraceID() {
			sp.t.Errorf("%s is in another trace than its parent", s.Name)
		}
		children[s.Parent.SpanID()] = append(children[s.Parent.SpanID()], s)
	}
	for id := range children {
		if _, known := byID[id]; id.IsValid() && !known {
			sp.t.Errorf("%s has a parent that is not recorded", children[id][0].Name)
		}
	}
	var render func(id trace.SpanID, indent string) string
	render = func(id trace.SpanID, indent string) string {
		var lines []string
		for _, s := range children[id] {
			lines = append(lines, indent+sp.line(s, byID)+"\n"+render(s.SpanContext.SpanID(), indent+"\t"))
		}
		slices.Sort(lines)
		return strings.Join(lines, "")
	}
	return render(trace.SpanID{}, "")
}

func (sp *spans) line(s tracetest.SpanStub, byID map[trace.SpanID]tracetest.SpanStub) string {
	line := s.Name + attributesOf(s)
	for _, l := range s.Links {
		to, known := byID[l.SpanContext.SpanID()]
		if !known {
			sp.t.Errorf("%s has a link to a span that is not recorded", s.Name)
		}
		line += " [" + attributeOf(l.Attributes, tracing.Link) + ": " + nameOf(to) + "]"
	}
	if s.Status.Code == codes.Error {
		line += " ERROR"
	}
	if s.Name != "lock.acquire" && s.Name != "lock.release" && s.SpanKind != trace.SpanKindInternal {
		sp.t.Errorf("%s is %s", s.Name, s.SpanKind)
	}
	return line
}

// nameOf returns a unique name of a span in a tree.
func nameOf(s tracetest.SpanStub) string {
	name := s.Name
	for _, key := range []attribute.Key{who, tracing.Operation, tracing.Key} {
		if v := attributeOf(s.Attributes, key); v != "" {
			name += " " + v
		}
	}
	return name
}

func attributesOf(s tracetest.SpanStub) (out string) {
	for _, key := range shown {
		if v := attributeOf(s.Attributes, key); v != "" {
			out += " " + v
		}
	}
	return out
}

func attributeOf(attrs []attribute.KeyValue, key attribute.Key) string {
	for _, a := range attrs {
		if a.Key == key {
			if key == tracing.Token { // tokens of the memory store contain the time
				return fmt.Sprintf("#%d", a.Value.AsInt64()%1000)
			}
			return fmt.Sprint(a.Value.AsInterface())
		}
	}
	return ""
}

// want compares the tree with the wanted one, without indentation.
func (sp *spans) want(tree string) {
	sp.t.Helper()
	want := strings.TrimPrefix(tree, "\n")
	margin := want[:len(want)-len(strings.TrimLeft(want, "\t"))]
	want = strings.ReplaceAll("\n"+strings.TrimRight(want, "\t\n"), "\n"+margin, "\n") + "\n"
	if got := "\n" + sp.tree(); got != want {
		sp.t.Errorf("spans: %s\nwanted: %s", got, want)
	}
}

// named returns the spans of a name, in the order of their ends.
func (sp *spans) named(name string) (out []tracetest.SpanStub) {
	for _, s := range sp.exporter.GetSpans() {
		if s.Name == name {
			out = append(out, s)
		}
	}
	return out
}

// openSpans counts the spans that have not ended.
type openSpans struct {
	mu sync.Mutex
	n  map[string]int
}

// opt makes a sidecar trace.
func (o *openSpans) opt() option {
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(o))
	return with(func(c *types.Config) { c.Tracer = tracing.New(provider) })
}

func (o *openSpans) count(name string, change int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.n == nil {
		o.n = map[string]int{}
	}
	o.n[name] += change
}

func (o *openSpans) OnStart(_ context.Context, s sdktrace.ReadWriteSpan) { o.count(s.Name(), 1) }
func (o *openSpans) OnEnd(s sdktrace.ReadOnlySpan)                       { o.count(s.Name(), -1) }
func (o *openSpans) Shutdown(context.Context) error                      { return nil }
func (o *openSpans) ForceFlush(context.Context) error                    { return nil }

// none checks that every span has ended.
func (o *openSpans) none(t tester) {
	t.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	for name, n := range o.n {
		if n != 0 {
			t.Errorf("%d spans %s have not ended", n, name)
		}
	}
}

// sampledCall returns the context of a call whose span is recorded elsewhere.
func sampledCall() context.Context {
	return trace.ContextWithSpanContext(context.Background(), trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: trace.TraceID(uuid.New()), SpanID: trace.SpanID{1}, TraceFlags: trace.FlagsSampled,
	}))
}
