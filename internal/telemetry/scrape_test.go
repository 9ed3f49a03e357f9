package telemetry

import (
	"bytes"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/valyala/fasthttp"
	"go.opentelemetry.io/otel/trace"

	"github.com/locksidecar/locksidecar/internal/metrics"
	"github.com/locksidecar/locksidecar/internal/tracing"
)

func scrape(tel *Telemetry, accept string) (contentType, body string) {
	var ctx fasthttp.RequestCtx
	ctx.Request.Header.Set("Accept", accept)
	tel.Scrape(&ctx)
	return string(ctx.Response.Header.ContentType()), string(ctx.Response.Body())
}

func TestScrape(t *testing.T) {
	tel, _ := mustStart(t, nil)
	tel.Metrics.Locks.Acquired(t.Context(), "deploy:prod", false, metrics.Granted, 3*time.Second)
	contentType, body := scrape(tel, "")
	if !strings.HasPrefix(contentType, "text/plain; version=0.0.4") {
		t.Error(contentType)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewBufferString(body))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{
		"locksidecar_wait_duration_seconds", "locksidecar_acquires_total", "locksidecar_build_info",
		"go_goroutines", "process_resident_memory_bytes",
	} {
		if families[name] == nil {
			t.Errorf("%s is missing", name)
		}
	}
	for name, f := range families {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if strings.HasPrefix(name, "locksidecar_") && strings.HasPrefix(l.GetName(), "otel_scope") {
					t.Errorf("%s has a label %s", name, l.GetName())
				}
			}
		}
	}
}

// A scraper that asks for OpenMetrics gets the exemplars with it.
func TestScrapeOpenMetrics(t *testing.T) {
	to := newReceiver(t)
	tel, _ := mustStart(t, map[string]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": to.URL + "/v1/traces"})
	const parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	ctx := trace.ContextWithRemoteSpanContext(t.Context(), tracing.Parse(parent))
	tel.Metrics.Locks.Acquired(ctx, "deploy:prod", false, metrics.Granted, 3*time.Second)
	contentType, body := scrape(tel, "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3")
	if !strings.HasPrefix(contentType, "application/openmetrics-text; version=1.0.0") || !strings.HasSuffix(body, "# EOF\n") {
		t.Error(contentType)
	}
	const bucket = `locksidecar_wait_duration_seconds_bucket{type="deploy",le="5.0"} 1 # {span_id="00f067aa0ba902b7",trace_id="4bf92f3577b34da6a3ce929d0e0e4736"} 3.0`
	if !strings.Contains(body, bucket) && !strings.Contains(body, strings.Replace(bucket,
		`span_id="00f067aa0ba902b7",trace_id="4bf92f3577b34da6a3ce929d0e0e4736"`,
		`trace_id="4bf92f3577b34da6a3ce929d0e0e4736",span_id="00f067aa0ba902b7"`, 1)) {
		t.Errorf("no exemplar:\n%s", body)
	}
}

// crowd is a collector that notes how many read it at once.
type crowd struct{ now, most atomic.Int32 }

func (*crowd) Describe(chan<- *prometheus.Desc) {}

func (c *crowd) Collect(chan<- prometheus.Metric) {
	if n := c.now.Add(1); n > c.most.Load() {
		c.most.Store(n)
	}
	time.Sleep(time.Millisecond)
	c.now.Add(-1)
}

func TestScrapesTakeTurns(t *testing.T) {
	tel, _ := mustStart(t, nil)
	c := &crowd{}
	tel.process.MustRegister(c)
	var scrapes sync.WaitGroup
	for range 100 {
		scrapes.Go(func() { tel.Scrape(&fasthttp.RequestCtx{}) })
	}
	scrapes.Wait()
	if n := c.most.Load(); n != 1 {
		t.Error(n, "at once")
	}
}
