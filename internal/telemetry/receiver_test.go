package telemetry

import (
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	collectormetrics "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	collectortrace "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	metricspb "go.opentelemetry.io/proto/otlp/metrics/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// receiver takes what is sent by OTLP over HTTP.
type receiver struct {
	*httptest.Server

	mu       sync.Mutex
	resource map[string]string
	spans    []*tracepb.Span
	metrics  map[string]*metricspb.Metric
}

func newReceiver(t *testing.T) *receiver {
	t.Helper()
	r := &receiver{metrics: map[string]*metricspb.Metric{}}
	r.Server = httptest.NewServer(r)
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body := io.Reader(req.Body)
	if req.Header.Get("Content-Encoding") == "gzip" {
		body, _ = gzip.NewReader(body)
	}
	data, err := io.ReadAll(body)
	if err == nil {
		err = r.take(req.URL.Path, data)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
}

func (r *receiver) take(path string, data []byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if path == "/v1/traces" {
		var in collectortrace.ExportTraceServiceRequest
		if err := proto.Unmarshal(data, &in); err != nil {
			return err
		}
		for _, of := range in.GetResourceSpans() {
			r.resource = words(of.GetResource().GetAttributes())
			for _, scope := range of.GetScopeSpans() {
				r.spans = append(r.spans, scope.GetSpans()...)
			}
		}
		return nil
	}
	var in collectormetrics.ExportMetricsServiceRequest
	if err := proto.Unmarshal(data, &in); err != nil {
		return err
	}
	for _, of := range in.GetResourceMetrics() {
		r.resource = words(of.GetResource().GetAttributes())
		for _, scope := range of.GetScopeMetrics() {
			for _, m := range scope.GetMetrics() {
				r.metrics[m.GetName()] = m
			}
		}
	}
	return nil
}

func words(attributes []*commonpb.KeyValue) map[string]string {
	all := map[string]string{}
	for _, kv := range attributes {
		all[kv.GetKey()] = kv.GetValue().GetStringValue()
	}
	return all
}
