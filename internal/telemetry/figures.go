package telemetry

import (
	"net/http"

	"github.com/prometheus/common/expfmt"
	"github.com/valyala/fasthttp"
)

// Figures answers GET /metrics, in the format that the asker prefers: Prometheus' text
// format, or OpenMetrics, which has the exemplars. It answers one at a time: a thousand
// that ask at once would have all figures a thousand times in memory, more than a sidecar
// is given.
func (t *Telemetry) Figures(ctx *fasthttp.RequestCtx) {
	t.scrape.Lock()
	defer t.scrape.Unlock()
	families, err := t.registry.Gather()
	if err != nil {
		t.log.Warn("some figures cannot be read", "error", err)
	}
	if len(families) == 0 {
		ctx.Error("no figures can be read", fasthttp.StatusInternalServerError)
		return
	}
	accept := http.Header{"Accept": {string(ctx.Request.Header.Peek("Accept"))}}
	format := expfmt.NegotiateAccept(accept, expfmt.DefaultOpenMetricsAcceptedFormats()...)
	ctx.SetContentType(string(format))
	out := expfmt.NewEncoder(ctx, format)
	for _, family := range families {
		if err := out.Encode(family); err != nil {
			t.log.Warn("a figure cannot be written", "name", family.GetName(), "error", err)
		}
	}
	if end, ok := out.(expfmt.Closer); ok {
		_ = end.Close() // it writes to memory
	}
}
