package inject

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/common/expfmt"

	"github.com/locksidecar/locksidecar/internal/certificate"
)

// The outcomes of reviews, which exist as counters from the start.
const (
	outcomeInjected     = "injected"
	outcomeUnchanged    = "unchanged"    // nothing to inject, or it was done before
	outcomeRefused      = "refused"      // the pod is wrong
	outcomeBad          = "bad_call"     // no API server asks so
	outcomeUnauthorized = "unauthorized" // the caller has no certificate of --client-ca
	outcomeBusy         = "busy"         // the caller gave up before its turn
)

// maxScrapes limits the connections to GET /metrics.
const maxScrapes = 8

// metrics are the webhook's own. They have no TLS and no secrets, and a listener of their own, so that a scrape needs no CA, and so that
// nobody needs to be let in to reviews for them.
type metrics struct {
	registry *prometheus.Registry
	reviews  *prometheus.CounterVec
	duration prometheus.Histogram
	failed   prometheus.Counter
}

func newMetrics(c *certificate.Certificate, version string) *metrics {
	const prefix = "locksidecar_injector_"
	m := &metrics{
		registry: prometheus.NewRegistry(),
		reviews: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: prefix + "reviews_total", Help: "Reviews that API servers asked for, by outcome.",
		}, []string{"outcome"}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: prefix + "review_duration_seconds", Help: "From the arrival of a review's header to its answer.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5},
		}),
		failed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: prefix + "failed_connections_total", Help: "Connections that ended before a request, such as those of API servers that do not trust the certificate.",
		}),
	}
	for _, outcome := range []string{outcomeInjected, outcomeUnchanged, outcomeRefused, outcomeBad, outcomeUnauthorized, outcomeBusy} {
		m.reviews.WithLabelValues(outcome)
	}
	info := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: prefix + "build_info", Help: "1, with the version of the injector."}, []string{"version"})
	info.WithLabelValues(version).Set(1)
	ends := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: prefix + "certificate_not_after_timestamp_seconds", Help: "When the certificate in use ends.",
	}, func() float64 {
		pair := c.Served()
		return float64(pair.Leaf.NotAfter.Unix())
	})
	m.registry.MustRegister(m.reviews, m.duration, m.failed, info, ends, collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// count records a review that began then.
func (m *metrics) count(outcome string, began time.Time) {
	m.reviews.WithLabelValues(outcome).Inc()
	m.duration.Observe(time.Since(began).Seconds())
}

// ServeHTTP answers GET /metrics.
func (m *metrics) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	families, err := m.registry.Gather()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	format := expfmt.NegotiateAccept(r.Header, expfmt.DefaultAcceptedFormats()...)
	w.Header().Set("Content-Type", string(format))
	out := expfmt.NewEncoder(w, format)
	for _, family := range families {
		if out.Encode(family) != nil {
			return // the caller is gone
		}
	}
}

// startMetrics listens and serves, until the server that it returns is closed.
func (w *Webhook) startMetrics(ctx context.Context) error {
	var lc net.ListenConfig
	listener, err := lc.Listen(ctx, "tcp", w.cfg.Metrics)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", w.metrics)
	w.scrapes = &http.Server{
		Handler: mux, ReadTimeout: readTimeout, WriteTimeout: writeTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader,
	}
	w.scraped = listener.Addr().String()
	w.serving.Go(func() {
		if err := w.scrapes.Serve(limitConnections(listener, maxScrapes, w.log)); !errors.Is(err, http.ErrServerClosed) {
			w.log.Error("serving metrics ended", "error", err)
		}
	})
	return nil
}
