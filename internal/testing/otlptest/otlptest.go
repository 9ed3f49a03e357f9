// Package otlptest receives the telemetry of programs under test like an OpenTelemetry collector:
// OTLP over HTTP, in protobuf.
package otlptest

import (
	"bytes"
	"compress/gzip"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sort"
	"strings"
	"sync"
	"testing"
	"time"

	collectormetrics "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	collectortrace "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	"go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// Receiver is a collector that stores what it receives.
type Receiver struct {
	server *httptest.Server

	mu      sync.Mutex
	spans   []Span
	metrics map[string]bool
	raw     bytes.Buffer
}

// Span is a span with the members that tests use.
type Span struct {
	// Service is the service.name of the program, Instance its service.instance.id.
	Service, Instance string
	Name              string
	Kind              v1.Span_SpanKind
	// Trace, ID and Parent are in hex; Parent is empty for a root.
	Trace, ID, Parent string
	Start, End        time.Time
	Attrs             map[string]any
	Links             []Link
	Status            v1.Status_StatusCode
}

// Link is a link to another span.
type Link struct {
	Trace, ID string
	Attrs     map[string]any
}

// To reports whether the link is to s.
func (l Link) To(s Span) bool { return l.Trace == s.Trace && l.ID == s.ID }

// Start starts a receiver. It ends with the test.
func Start(t testing.TB) *Receiver {
	r := &Receiver{metrics: make(map[string]bool)}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/traces", r.handle(r.takeTraces))
	mux.HandleFunc("POST /v1/metrics", r.handle(r.takeMetrics))
	r.server = httptest.NewServer(mux)
	t.Cleanup(r.server.Close)
	return r
}

// Env returns the variables that make a program export its spans to this receiver at once.
func (r *Receiver) Env() []string {
	return []string{
		"OTEL_EXPORTER_OTLP_ENDPOINT=" + r.server.URL, "OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf",
		"OTEL_BSP_SCHEDULE_DELAY=50", "OTEL_METRIC_EXPORT_INTERVAL=200",
	}
}

func (r *Receiver) handle(take func([]byte) error) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		body, err := read(req)
		if err == nil {
			err = take(body)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/x-protobuf")
	}
}

func read(req *http.Request) ([]byte, error) {
	if req.Header.Get("Content-Encoding") != "gzip" {
		return io.ReadAll(req.Body)
	}
	unzipped, err := gzip.NewReader(req.Body)
	if err != nil {
		return nil, err
	}
	return io.ReadAll(unzipped)
}

func (r *Receiver) takeMetrics(body []byte) error {
	var msg collectormetrics.ExportMetricsServiceRequest
	if err := proto.Unmarshal(body, &msg); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.raw.Write(body)
	for _, resource := range msg.ResourceMetrics {
		for _, scope := range resource.ScopeMetrics {
			for _, m := range scope.Metrics {
				r.metrics[m.Name] = true
			}
		}
	}
	return nil
}

func (r *Receiver) takeTraces(body []byte) error {
	var msg collectortrace.ExportTraceServiceRequest
	if err := proto.Unmarshal(body, &msg); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.raw.Write(body)
	for _, from := range msg.ResourceSpans {
		about := attrs(from.Resource.GetAttributes())
		for _, scope := range from.ScopeSpans {
			for _, s := range scope.Spans {
				r.spans = append(r.spans, spanOf(about, s))
			}
		}
	}
	return nil
}

func spanOf(about map[string]any, s *v1.Span) Span {
	out := Span{
		Service: text(about["service.name"]), Instance: text(about["service.instance.id"]),
		Name: s.Name, Kind: s.Kind, Status: s.GetStatus().GetCode(),
		Trace: hex.EncodeToString(s.TraceId), ID: hex.EncodeToString(s.SpanId), Parent: hex.EncodeToString(s.ParentSpanId),
		Start: time.Unix(0, int64(s.StartTimeUnixNano)), End: time.Unix(0, int64(s.EndTimeUnixNano)),
		Attrs: attrs(s.Attributes),
	}
	for _, l := range s.Links {
		out.Links = append(out.Links, Link{Trace: hex.EncodeToString(l.TraceId), ID: hex.EncodeToString(l.SpanId), Attrs: attrs(l.Attributes)})
	}
	return out
}

func attrs(list []*common.KeyValue) map[string]any {
	out := make(map[string]any, len(list))
	for _, kv := range list {
		out[kv.Key] = value(kv.Value)
	}
	return out
}

func value(v *common.AnyValue) any {
	switch v := v.GetValue().(type) {
	case *common.AnyValue_StringValue:
		return v.StringValue
	case *common.AnyValue_IntValue:
		return v.IntValue
	case *common.AnyValue_BoolValue:
		return v.BoolValue
	case *common.AnyValue_DoubleValue:
		return v.DoubleValue
	case *common.AnyValue_ArrayValue:
		var all []any
		for _, e := range v.ArrayValue.Values {
			all = append(all, value(e))
		}
		return all
	}
	return nil
}

func text(v any) string {
	s, _ := v.(string)
	return s
}

// Spans returns all received spans.
func (r *Receiver) Spans() []Span {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]Span(nil), r.spans...)
}

// Metrics returns the names of all received metrics.
func (r *Receiver) Metrics() map[string]bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make(map[string]bool, len(r.metrics))
	for name := range r.metrics {
		out[name] = true
	}
	return out
}

// Contains reports whether the received data contains a text.
func (r *Receiver) Contains(text string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return bytes.Contains(r.raw.Bytes(), []byte(text))
}

// Tree formats spans as a tree. Each span is a line, in the order of their starts, with the
// attributes that show names.
func Tree(spans []Span, show ...string) string {
	children := make(map[string][]Span)
	known := make(map[string]bool)
	for _, s := range spans {
		known[s.ID] = true
	}
	for _, s := range spans {
		parent := s.Parent
		if !known[parent] {
			parent = ""
		}
		children[parent] = append(children[parent], s)
	}
	var out strings.Builder
	var draw func(parent, indent string)
	draw = func(parent, indent string) {
		below := children[parent]
		sort.SliceStable(below, func(i, j int) bool { return below[i].Start.Before(below[j].Start) })
		for _, s := range below {
			fmt.Fprintf(&out, "%s%s %s", indent, s.Name, strings.ToLower(strings.TrimPrefix(s.Kind.String(), "SPAN_KIND_")))
			for _, name := range show {
				if v, ok := s.Attrs[name]; ok {
					fmt.Fprintf(&out, " %s=%v", name, v)
				}
			}
			out.WriteString("\n")
			draw(s.ID, indent+"  ")
		}
	}
	draw("", "")
	return out.String()
}
