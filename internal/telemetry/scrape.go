package telemetry

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
	"github.com/valyala/fasthttp"
)

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
