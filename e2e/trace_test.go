package e2e

import (
	"bufio"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/proto/otlp/trace/v1"

	"github.com/locksidecar/locksidecar/internal/testing/otlptest"
)

const (
	server   = v1.Span_SPAN_KIND_SERVER
	client   = v1.Span_SPAN_KIND_CLIENT
	internal = v1.Span_SPAN_KIND_INTERNAL
)

// traced starts a sidecar that exports to the receiver under this service name.
func traced(t *testing.T, r *otlptest.Receiver, service string, o options) *sidecar {
	t.Helper()
	s := launchWith(t, folder(t), o, append(r.Env(), "OTEL_SERVICE_NAME="+service))
	s.await("ready", s.tryReady)
	return s
}

// aTrace returns the traceparent of an app's own span, in a trace of its own.
func aTrace(n int) (trace, span, header string) {
	trace, span = fmt.Sprintf("%032x", 0xabc0000+n), fmt.Sprintf("%016x", 0xdef0000+n)
	return trace, span, "Traceparent: 00-" + trace + "-" + span + "-01"
}

// forest is the data that a receiver got.
type forest struct {
	t     *testing.T
	r     *otlptest.Receiver
	spans []otlptest.Span
}

// awaitSpans waits until the receiver has enough data.
func awaitSpans(t *testing.T, r *otlptest.Receiver, what string, enough func(*forest) bool) *forest {
	t.Helper()
	f := &forest{t: t, r: r}
	defer func() {
		if t.Failed() {
			t.Logf("the spans:\n%s", otlptest.Tree(f.spans, "lock.key", "lock.result", "lock.end_reason", "store.operation", "store.batch.size"))
		}
	}()
	eventually(t, what, func() bool {
		f.spans = r.Spans()
		return enough(f)
	})
	return f
}

// all returns the spans of a service with a name. An empty service or name matches all.
func (f *forest) all(service, name string, kind v1.Span_SpanKind) (found []otlptest.Span) {
	for _, s := range f.spans {
		if (service == "" || s.Service == service) && (name == "" || s.Name == name) && s.Kind == kind {
			found = append(found, s)
		}
	}
	return found
}

// one returns the only such span.
func (f *forest) one(service, name string, kind v1.Span_SpanKind) otlptest.Span {
	f.t.Helper()
	found := f.all(service, name, kind)
	if len(found) != 1 {
		f.t.Fatalf("%d spans %s %s of %s, want 1:\n%s", len(found), kind, name, service, otlptest.Tree(f.spans, "lock.key"))
	}
	return found[0]
}

// below returns the children of a span with a name.
func (f *forest) below(parent otlptest.Span, name string) (found []otlptest.Span) {
	for _, s := range f.spans {
		if s.Trace == parent.Trace && s.Parent == parent.ID && s.Name == name {
			found = append(found, s)
		}
	}
	return found
}

// only returns the only child with a name.
func (f *forest) only(parent otlptest.Span, name string) otlptest.Span {
	f.t.Helper()
	found := f.below(parent, name)
	if len(found) != 1 {
		f.t.Fatalf("%d spans %s below %s, want 1:\n%s", len(found), name, parent.Name, otlptest.Tree(f.spans, "lock.key", "store.operation"))
	}
	return found[0]
}

// batch returns the store operation that carried a call.
func (f *forest) batch(parent otlptest.Span, operation string) otlptest.Span {
	f.t.Helper()
	for _, s := range f.below(parent, "store.batch") {
		if s.Attrs["store.operation"] == operation {
			return s
		}
	}
	f.t.Fatalf("no store.batch for %s below %s:\n%s", operation, parent.Name, otlptest.Tree(f.spans, "store.operation"))
	return otlptest.Span{}
}

func (f *forest) has(s otlptest.Span, attribute string, want any) {
	f.t.Helper()
	if got := s.Attrs[attribute]; got != want {
		f.t.Errorf("%s of %s is %v, want %v; all: %v", attribute, s.Name, got, want, s.Attrs)
	}
}

// links checks that s has exactly one link of this kind to each of the others.
func (f *forest) links(s otlptest.Span, what string, others ...otlptest.Span) {
	f.t.Helper()
	n := 0
	for _, l := range s.Links {
		if l.Attrs["lock.link"] != what {
			continue
		}
		n++
		if !slices.ContainsFunc(others, l.To) {
			f.t.Errorf("%s has an unexpected link %s to %s/%s", s.Name, what, l.Trace, l.ID)
		}
	}
	if n != len(others) {
		f.t.Errorf("%s has %d links %s, want %d: %v", s.Name, n, what, len(others), s.Links)
	}
}

// pythonApp is a program with the Python client and the OpenTelemetry SDK.
type pythonApp struct {
	t     *testing.T
	lines chan string
	stdin io.Writer
	ended chan error
}

func startPython(t *testing.T, r *otlptest.Receiver, s *sidecar, args ...string) *pythonApp {
	t.Helper()
	python, err := filepath.Abs("../clients/python/.venv/bin/python")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(python, append([]string{"testdata/traced.py"}, args...)...)
	cmd.Env = append(append(cleanEnv(), r.Env()...), "OTEL_SERVICE_NAME=shop", "LOCKSIDECAR_SOCKET="+s.socket)
	var problems logBuffer
	cmd.Stderr = &problems
	p := &pythonApp{t: t, lines: make(chan string, 10), ended: make(chan error, 1)}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if p.stdin, err = cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatalf("%v; `make test-go` makes the environment in clients/python/.venv", err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	go func() {
		for scanner := bufio.NewScanner(out); scanner.Scan(); {
			p.lines <- scanner.Text()
		}
		close(p.lines)
		if err := cmd.Wait(); err != nil {
			p.ended <- fmt.Errorf("%w: %s", err, problems.String())
			return
		}
		p.ended <- nil
	}()
	return p
}

// says waits for a line with this prefix.
func (p *pythonApp) says(want string) {
	p.t.Helper()
	select {
	case line, more := <-p.lines: // earlier lines come first, also after the end
		if !more {
			p.t.Fatalf("the app ended before it printed %q: %v", want, <-p.ended)
		}
		if !strings.HasPrefix(line, want) {
			p.t.Fatalf("the app printed %q, want %q", line, want)
		}
	case <-time.After(patience):
		p.t.Fatalf("the app did not print %q", want)
	}
}

func (p *pythonApp) goOn() {
	p.t.Helper()
	if _, err := io.WriteString(p.stdin, "\n"); err != nil {
		p.t.Fatal(err)
	}
}

// end waits until the app has ended without an error.
func (p *pythonApp) end() {
	p.t.Helper()
	select {
	case err := <-p.ended:
		if err != nil {
			p.t.Fatal(err)
		}
	case <-time.After(patience):
		p.t.Fatal("the app did not end")
	}
}

// TestTraceTree follows a contended lock, between two sidecars and an app with the Python client.
// The app's trace shows its wait, with a link to the trace of the holder.
// Proves: rule traces, threat telemetry reader
func TestTraceTree(t *testing.T) {
	t.Parallel()
	for _, shell := range []string{"sync", "async"} {
		t.Run(shell, func(t *testing.T) { traceTree(t, shell) })
	}
}

func traceTree(t *testing.T, shell string) {
	const secret = "nothing-that-may-leave"
	r := otlptest.Start(t)
	o, _ := onPostgres(t)
	one := traced(t, r, "sidecar-one", o.with(options{"POD": "pod-one"}))
	two := traced(t, r, "sidecar-two", o.with(options{"POD": "pod-two"}))

	trace, span, header := aTrace(1)
	holder := dial(t, one.socket)
	token := holder.acquire("order:7", `{"data":{"note":"`+secret+`"}}`, header)
	app := startPython(t, r, two, "order:7", shell)
	one.awaitQueue("order:7", 1)
	holder.release("order:7", token, header)
	app.says("granted")
	app.goOn()
	app.says("released")
	app.end()

	f := awaitSpans(t, r, "the spans of all", func(f *forest) bool {
		return len(f.all("sidecar-two", "lock.held", internal)) == 1 && len(f.all("sidecar-one", "lock.held", internal)) == 1 &&
			len(f.all("sidecar-two", "lock.release", server)) == 1 && len(f.all("sidecar-one", "lock.release", server)) == 1 &&
			len(f.all("shop", "request", internal)) == 1 && len(f.all("shop", "lock.release", client)) == 1
	})

	// The trace of the holder.
	acquired := f.one("sidecar-one", "lock.acquire", server)
	if acquired.Trace != trace || acquired.Parent != span {
		t.Errorf("the holder's acquire has trace %s and parent %s, want the app's %s, %s", acquired.Trace, acquired.Parent, trace, span)
	}
	f.has(acquired, "lock.key", "order:7")
	f.has(acquired, "lock.type", "order")
	f.has(acquired, "lock.result", "granted")
	f.has(acquired, "lock.token", token)
	f.has(acquired, "http.response.status_code", int64(200))
	heldByOne := f.only(acquired, "lock.held")
	f.has(heldByOne, "lock.end_reason", "released")
	released := f.one("sidecar-one", "lock.release", server)
	f.links(released, "acquire", acquired)
	f.has(released, "lock.result", "released")

	// The trace of the waiter.
	request := f.one("shop", "request", internal)
	asked := f.only(request, "lock.acquire")
	if asked.Kind != client || asked.Service != "shop" {
		t.Errorf("the app's own span is %s of %s", asked.Kind, asked.Service)
	}
	served := f.only(asked, "lock.acquire")
	if served.Kind != server || served.Service != "sidecar-two" {
		t.Errorf("its child is %s of %s", served.Kind, served.Service)
	}
	f.has(served, "lock.result", "granted")
	wait := f.only(served, "lock.wait")
	f.links(wait, "holder", acquired)
	f.links(wait, "release", released)
	f.has(wait, "lock.granted_by", "hand_off")
	f.has(wait, "lock.result", "granted")
	f.has(wait, "lock.holder.pod", "pod-one")
	f.has(wait, "lock.queue_position", int64(1))
	if wait.End.Before(released.Start) {
		t.Errorf("the wait ended at %s, before the release at %s", wait.End, released.Start)
	}
	held := f.only(served, "lock.held")
	f.has(held, "lock.end_reason", "released")
	f.has(held, "lock.token", served.Attrs["lock.token"])
	gaveBack := f.only(f.only(request, "lock.release"), "lock.release")
	f.links(gaveBack, "acquire", served)

	// The store operations of both.
	f.batch(served, "acquire")
	for _, s := range f.all("", "store.batch", internal) {
		wantBatch(t, f, s)
	}
	f.batch(gaveBack, "release")
	f.batch(released, "release")
	if len(f.below(wait, "store.batch"))+len(f.below(served, "store.batch")) < 2 {
		t.Error("no batch queued the waiter")
	}
	if r.Contains(secret) {
		t.Error("the data of a lock was exported")
	}
}

// wantBatch checks a batch: its links to its calls, their links to it, and the SQL spans below.
func wantBatch(t *testing.T, f *forest, s otlptest.Span) {
	t.Helper()
	calls := 0
	for _, l := range s.Links {
		if l.Attrs["lock.link"] != "call" {
			continue
		}
		calls++
		i := slices.IndexFunc(f.spans, l.To)
		if i < 0 {
			t.Errorf("a batch for %v has a link to an unknown span", s.Attrs["store.operation"])
			continue
		}
		call := f.spans[i]
		back := slices.ContainsFunc(call.Links, func(l otlptest.Link) bool { return l.Attrs["lock.link"] == "batch" && l.To(s) })
		if call.ID != s.Parent && !back {
			t.Errorf("%s has no link to the batch that carried it", call.Name)
		}
	}
	if size := s.Attrs["store.batch.size"]; size != int64(calls) {
		t.Errorf("a batch of %v has links to %d calls", size, calls)
	}
	sql := 0
	for _, c := range f.spans {
		if c.Parent == s.ID && c.Kind == client {
			sql++
			if c.Attrs["db.system.name"] != "postgresql" && c.Attrs["db.system"] != "postgresql" {
				t.Errorf("the span %s below a batch is not of PostgreSQL: %v", c.Name, c.Attrs)
			}
		}
	}
	if sql == 0 {
		t.Errorf("no SQL below the batch for %v", s.Attrs["store.operation"])
	}
}

// TestTracedBatches: concurrent calls share batches. Each batch has links to all its calls.
// Proves: rule traces
func TestTracedBatches(t *testing.T) {
	t.Parallel()
	const apps = 200
	r := otlptest.Start(t)
	o, _ := onPostgres(t)
	s := traced(t, r, "sidecar", o)
	conns := make([]*app, apps)
	for i := range conns {
		conns[i] = dial(t, s.socket)
		_, _, header := aTrace(i)
		conns[i].send("PUT", lockPath(fmt.Sprintf("batched:%d", i)), "", header)
	}
	for i, a := range conns {
		a.read("PUT", lockPath(fmt.Sprintf("batched:%d", i))).granted()
	}
	f := awaitSpans(t, r, "all acquires and their batches", func(f *forest) bool {
		carried := 0
		for _, s := range f.all("", "store.batch", internal) {
			if s.Attrs["store.operation"] == "acquire" {
				carried += len(s.Links)
			}
		}
		return len(f.all("", "lock.acquire", server)) == apps && carried >= apps
	})
	largest := int64(0)
	for _, s := range f.all("", "store.batch", internal) {
		if s.Attrs["store.operation"] != "acquire" {
			continue
		}
		wantBatch(t, f, s)
		largest = max(largest, s.Attrs["store.batch.size"].(int64))
	}
	if largest < 2 {
		t.Error("every batch carried a single call")
	}
	t.Logf("%d acquires in %d batches, the largest of %d", apps, len(f.all("", "store.batch", internal)), largest)
}

// TestTracedDrop: an app is killed. The trace of its lock shows that, and the waiter's trace links
// to it.
// Proves: rule traces
func TestTracedDrop(t *testing.T) {
	t.Parallel()
	r := otlptest.Start(t)
	o, _ := onPostgres(t)
	one, two := traced(t, r, "sidecar-one", o), traced(t, r, "sidecar-two", o)
	_, _, his := aTrace(1)
	_, _, hers := aTrace(2)
	holder, waiter := dial(t, one.socket), dial(t, two.socket)
	holder.acquire("job:1", "", his)
	waiter.send("PUT", lockPath("job:1"), `{"wait_ms":-1}`, hers)
	one.awaitQueue("job:1", 1)
	holder.close()
	waiter.read("PUT", lockPath("job:1")).granted()
	f := awaitSpans(t, r, "the end of the wait and of the hold", func(f *forest) bool {
		return len(f.all("sidecar-two", "lock.wait", internal)) == 1 && len(f.all("sidecar-one", "lock.held", internal)) == 1 &&
			len(f.all("sidecar-two", "lock.acquire", server)) == 1
	})
	held := f.one("sidecar-one", "lock.held", internal)
	f.has(held, "lock.end_reason", "disconnected")
	if held.Status != v1.Status_STATUS_CODE_ERROR {
		t.Error("the span of a lock that a crash ended has no error")
	}
	acquired := f.one("sidecar-one", "lock.acquire", server)
	wait := f.one("sidecar-two", "lock.wait", internal)
	f.links(wait, "holder", acquired)
	f.links(wait, "release", acquired) // without a release, the link is to the acquire of the holder
}

// TestTracingHonoursTheApp: calls that the app does not record are not recorded. Without a setting,
// no telemetry is sent.
// Proves: rule traces
func TestTracingHonoursTheApp(t *testing.T) {
	t.Parallel()
	r := otlptest.Start(t)
	o, url := onPostgres(t)
	s := traced(t, r, "sidecar", o)
	a := dial(t, s.socket)
	unsampled := "Traceparent: 00-" + strings.Repeat("a", 32) + "-" + strings.Repeat("b", 16) + "-00"
	for range 5 {
		a.release("quiet", a.acquire("quiet", "", unsampled), unsampled)
	}
	_, _, header := aTrace(3)
	a.release("loud", a.acquire("loud", "", header), header)
	f := awaitSpans(t, r, "the recorded calls", func(f *forest) bool { return len(f.all("", "lock.release", server)) > 0 })
	for _, span := range f.spans {
		if key := span.Attrs["lock.key"]; key == "quiet" || span.Trace == strings.Repeat("a", 32) {
			t.Errorf("%s was recorded although the app does not record", span.Name)
		}
		if span.Name != "store.batch" && span.Parent == "" {
			t.Errorf("%s is the root of a trace of its own", span.Name)
		}
	}

	// With tracing off, the app's trace context is passed on unchanged.
	off := start(t, options{"STORE_URL": url})
	trace, spanID, header := aTrace(4)
	dial(t, off.socket).acquire("off", "", header)
	view := a.call("GET", lockPath("off"), "", "Cache-Control: no-cache")
	holder, _ := view.json["holder"].(map[string]any)
	if holder["traceparent"] != "00-"+trace+"-"+spanID+"-01" {
		t.Errorf("the holder's traceparent is %v", holder["traceparent"])
	}
}

// TestTracedMetrics: the same variables export metrics, too.
func TestTracedMetrics(t *testing.T) {
	t.Parallel()
	r := otlptest.Start(t)
	s := traced(t, r, "sidecar", options{"STORE_URL": "memory://"})
	dial(t, s.socket).acquire("figure:1", "")
	eventually(t, "figures", func() bool { return r.Metrics()["locksidecar_acquires_total"] && r.Metrics()["locksidecar_locks_held"] })
}
