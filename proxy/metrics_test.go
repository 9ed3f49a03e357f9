package proxy

import (
	"compress/gzip"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/valyala/fasthttp"
	"github.com/valyala/fasthttp/fasthttpadaptor"

	"github.com/locksidecar/locksidecar/internal/testing/apitest"
	"github.com/locksidecar/locksidecar/internal/testing/await"
)

const metricsText = "# TYPE locksidecar_sessions gauge\nlocksidecar_sessions 3\n"

// withMetrics makes a server answer GET /metrics, with its query behind the metrics.
func withMetrics(c *Config) {
	c.MetricsHandler = func(ctx *fasthttp.RequestCtx) {
		ctx.SetContentType("text/plain; version=0.0.4; charset=utf-8")
		ctx.SetBodyString(metricsText + "# " + string(ctx.QueryArgs().Peek("name[]")))
	}
	c.AdminAddr, c.TCPAddr = "127.0.0.1:0", "127.0.0.1:0"
}

// scrape reads the answer to GET /metrics.
func (c *client) scrape(query string) answer {
	c.t.Helper()
	c.request("GET", "/metrics"+query, "")
	return c.metrics()
}

func (c *client) metrics() answer {
	c.t.Helper()
	resp, err := http.ReadResponse(c.r, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	apitest.Check(c.t, "GET", "/metrics", resp.StatusCode, resp.Header, body)
	return answer{Response: resp, text: string(body)}
}

func TestMetrics(t *testing.T) {
	f := start(t, withMetrics)
	for name, c := range map[string]*client{
		"socket": f.dial(), "tcp": dialTo(t, "tcp", f.TCPAddr().String()), "admin": dialTo(t, "tcp", f.AdminAddr().String()),
	} {
		a := c.scrape("?name[]=x")
		if a.StatusCode != 200 || a.text != metricsText+"# x" || !strings.HasPrefix(a.Header.Get("Content-Type"), "text/plain; version=0.0.4") {
			t.Error(name, a.Response, a.text)
		}
		if a.Close != (name == "admin") {
			t.Error(name, "closes:", a.Close)
		}
	}
	for _, method := range []string{"POST", "PUT", "DELETE"} {
		for _, c := range []*client{f.dial(), dialTo(t, "tcp", f.AdminAddr().String())} {
			a := c.do(method, "/metrics", "")
			a.want(t, 405, "method_not_allowed")
			if a.Header.Get("Allow") != methodsGet {
				t.Error(a.Header)
			}
		}
	}
	f.dial().do("GET", "/metrics/x", "").want(t, 404, "not_found")
	none := start(t, func(c *Config) { c.AdminAddr = "127.0.0.1:0" })
	none.dial().do("GET", "/metrics", "").want(t, 404, "not_found")
	none.dial().do("POST", "/metrics", "").want(t, 404, "not_found")
	dialTo(t, "tcp", none.AdminAddr().String()).do("GET", "/metrics", "").want(t, 404, "not_found")
}

// The handler of Prometheus' own library works behind it, in all that it can.
func TestPrometheusMetrics(t *testing.T) {
	registry := prometheus.NewRegistry()
	counter := prometheus.NewCounter(prometheus.CounterOpts{Name: "locksidecar_things_total", Help: "Things."})
	registry.MustRegister(counter)
	counter.(prometheus.ExemplarAdder).AddWithExemplar(2, prometheus.Labels{"trace_id": appTrace})
	handler := promhttp.HandlerFor(registry, promhttp.HandlerOpts{EnableOpenMetrics: true})
	f := start(t, func(c *Config) { c.MetricsHandler = fasthttpadaptor.NewFastHTTPHandler(handler) })
	c := f.dial()
	if a := c.scrape(""); !strings.Contains(a.text, "\nlocksidecar_things_total 2\n") {
		t.Error(a.Header, a.text)
	}
	c.request("GET", "/metrics", "", "Accept: application/openmetrics-text; version=1.0.0", "Accept-Encoding: gzip")
	a := c.metrics()
	unzipped, err := gzip.NewReader(strings.NewReader(a.text))
	if err != nil {
		t.Fatal(err, a.Header)
	}
	text, err := io.ReadAll(unzipped)
	if err != nil || !strings.Contains(string(text), `# {trace_id="`+appTrace) || !strings.HasSuffix(string(text), "# EOF\n") {
		t.Error(err, string(text))
	}
	if a := c.scrape("?name[]=locksidecar_others_total"); strings.Contains(a.text, "things") {
		t.Error(a.text)
	}
	c.do("GET", "/v1", "").want(t, 200, "") // the connection goes on
}

// To gather the metrics may take a while. A connection that closes meanwhile loses
// its locks at once, and other calls do not wait.
func TestMetricsBlockNoOtherCall(t *testing.T) {
	asked, goOn := make(chan struct{}), make(chan struct{})
	f := start(t, withMetrics, func(c *Config) {
		c.MetricsHandler = func(*fasthttp.RequestCtx) {
			asked <- struct{}{}
			<-goOn
		}
	})
	c := f.dial()
	c.do("PUT", "/v1/locks/a", "").want(t, 200, "")
	c.request("GET", "/metrics", "")
	await.Receive(t, asked, "the request for metrics")
	other := f.dial()
	other.do("PUT", "/v1/locks/b", `{"bind":"ttl"}`).want(t, 200, "")
	_ = other.Close()
	_ = c.Close()
	await.Receive(t, f.locks.ended, "the session's end")
	close(goOn)
	f.allClosed()
}

// Those who read slowly, or not at all, are cut off, and long answers that stand in
// memory are few.
func TestLongMetrics(t *testing.T) {
	const length = 2 << 20 // more than any socket's buffers
	f := start(t, withMetrics, func(c *Config) {
		c.MetricsHandler = func(ctx *fasthttp.RequestCtx) {
			ctx.SetContentType("text/plain")
			ctx.Response.Header.Set("Content-Encoding", "identity")
			ctx.SetBody(make([]byte, length))
		}
		c.Timeouts.StreamWrite = await.Patience
	})
	if a := f.dial().scrape(""); len(a.text) != length {
		t.Error(len(a.text))
	}
	idle := f.takeLongAnswers("/metrics")
	a := f.dial().do("GET", "/metrics", "")
	a.want(t, 429, "limit")
	if a.Header.Get("Content-Encoding") != "" {
		t.Error(a.Header)
	}
	for _, c := range idle {
		_ = c.Close()
	}
	f.longAnswersDone()
	if a := f.dial().scrape(""); len(a.text) != length {
		t.Error(len(a.text))
	}
}

func TestMetricsReaderIsDropped(t *testing.T) {
	asked := make(chan struct{}, 1)
	f := start(t, withMetrics, func(c *Config) {
		c.MetricsHandler = func(ctx *fasthttp.RequestCtx) {
			ctx.SetBody(make([]byte, 2<<20))
			asked <- struct{}{}
		}
		c.Timeouts.StreamWrite = 20 * time.Millisecond
	})
	f.dial().request("GET", "/metrics", "")
	await.Receive(t, asked, "the request for metrics")
	f.allClosed()
	f.longAnswersDone()
}

// A panic while metrics are made is an answer like others.
func TestPanicInMetrics(t *testing.T) {
	f := start(t, withMetrics, func(c *Config) {
		c.MetricsHandler = func(ctx *fasthttp.RequestCtx) {
			ctx.Response.Header.Set("Content-Encoding", "gzip")
			ctx.SetBodyString("half")
			panic("a bug")
		}
	})
	a := f.dial().do("GET", "/metrics", "")
	a.want(t, 500, "internal")
	if a.Header.Get("Content-Encoding") != "" {
		t.Error(a.Header)
	}
}

// counts collects the codes of problems that are counted.
type counts struct {
	mu  sync.Mutex
	all []string
}

func (c *counts) add(code string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, code)
}

func (c *counts) take() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer func() { c.all = nil }()
	return strings.Join(c.all, " ")
}

// Each answer that is a problem is counted, once.
func TestProblemsAreCounted(t *testing.T) {
	f := start(t, func(c *Config) { c.MaxConns = 3 })
	var counted counts
	f.countProblem = counted.add // nobody is connected yet
	c := f.dial()
	c.do("PUT", "/v1/locks/a", "").want(t, 200, "")
	if got := counted.take(); got != "" {
		t.Error(got)
	}
	other := f.dial()
	for _, tt := range []struct{ method, target, body, want string }{
		{"PUT", "/v1/locks/a", "", "held"},
		{"PUT", "/v1/locks/a", "{", "invalid_request"},
		{"GET", "/nothing", "", "not_found"},
		{"POST", "/v1", "", "method_not_allowed"},
		{"DELETE", "/v1/locks/a?token=7", "", "not_holder"},
		{"GET", "/v1/locks/a?x=%zz", "", "invalid_request"},
	} {
		other.do(tt.method, tt.target, tt.body)
		if got := counted.take(); got != tt.want {
			t.Errorf("%v: counted %q", tt, got)
		}
	}
	if n := f.conns.Apps(); n != 2 {
		t.Error(n, "connections")
	}
	third := f.dial()
	third.do("GET", "/v1", "").want(t, 200, "")
	refused := f.dial()
	refused.do("GET", "/v1", "").want(t, 429, "limit")
	if got := counted.take(); got != "limit" {
		t.Error(got)
	}
	third.send("nonsense\r\n\r\n")
	third.read().want(t, 400, "invalid_request")
	if got := counted.take(); got != "invalid_request" {
		t.Error(got)
	}
	if n := f.conns.Apps(); n > 3 {
		t.Error(n, "connections, those that were refused included")
	}
}

// A problem that ends an event stream is counted like a status, and once.
func TestProblemsOfStreamsAreCounted(t *testing.T) {
	f := start(t, func(c *Config) { c.Timeouts.Subscribe = time.Millisecond })
	var counted counts
	f.countProblem = counted.add
	goOn := make(chan struct{})
	f.locks.hook = func(string, string) error {
		<-goOn
		return errPanic
	}
	c := f.dial()
	c.request("GET", "/v1/locks/a/events", "")
	e := c.events()
	close(goOn)
	if name, data := e.next(); name != "problem" || data["code"] != "internal" {
		t.Error(name, data)
	}
	if got := counted.take(); got != "internal" {
		t.Error(got)
	}
	f = start(t, func(c *Config) { c.Timeouts.Subscribe = await.Patience })
	f.countProblem = counted.add
	f.locks.hook = func(string, string) error { return errPanic }
	f.dial().do("GET", "/v1/locks/a/events", "").want(t, 500, "internal")
	if got := counted.take(); got != "internal" {
		t.Error(got)
	}
}
