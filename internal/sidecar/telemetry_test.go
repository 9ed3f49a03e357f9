package sidecar_test

import (
	"errors"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testing/sidecartest"
)

// Values of the OpenTelemetry specification that this build does not have end no lock service.
func TestUnusableTelemetryStopsNoLocks(t *testing.T) {
	const nowhere = "http://127.0.0.1:1"
	for name, c := range map[string]struct {
		set  map[string]string
		says []string
	}{
		"sampler":  {map[string]string{"OTEL_TRACES_EXPORTER": "otlp", "OTEL_TRACES_SAMPLER": "parentbased_jaeger_remote"}, []string{"unsupported sampler: parentbased_jaeger_remote"}},
		"protocol": {map[string]string{"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}, []string{"traces", "metrics", "http/json"}},
		"exporter": {map[string]string{"OTEL_TRACES_EXPORTER": "otlp,console"}, []string{"traces", "otlp,console"}},
	} {
		t.Run(name, func(t *testing.T) {
			c.set["OTEL_EXPORTER_OTLP_ENDPOINT"] = nowhere
			for variable, value := range c.set {
				t.Setenv(variable, value)
			}
			in := sidecartest.Start(t, c.set, "msg=ready")
			sidecartest.Dial(t, in.Socket).Acquire("k")
			for _, part := range c.says {
				in.Log.Await(t, part)
			}
		})
	}
}

// Telemetry that was not sent before is sent at the end, after all else has stopped.
func TestTelemetryIsFlushedLast(t *testing.T) {
	var sent atomic.Int32
	arrived, answer := make(chan struct{}, 1), make(chan struct{})
	goOn := sync.OnceFunc(func() { close(answer) })
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if r.URL.Path == "/v1/metrics" && sent.Add(1) == 1 {
			arrived <- struct{}{}
			<-answer
		}
	}))
	defer receiver.Close()
	defer goOn()
	t.Setenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", receiver.URL+"/v1/metrics")
	in := sidecartest.Start(t, map[string]string{"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": receiver.URL + "/v1/metrics"}, "msg=ready")
	if n := sent.Load(); n != 0 {
		t.Fatalf("sent %d times before the stop", n)
	}
	in.Stop()
	select {
	case <-arrived:
	case <-time.After(30 * time.Second):
		t.Fatalf("nothing is sent:\n%s", in.Log.String())
	}
	if _, err := os.Lstat(in.Socket); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("sent while the socket is there: %v", err)
	}
	in.Log.Await(t, "msg=stopping") // lines are written beside what they tell of
	if strings.Contains(in.Log.String(), "msg=stopped") {
		t.Errorf("sent after the end:\n%s", in.Log.String())
	}
	goOn()
	if err := in.End(t); err != nil {
		t.Error(err)
	}
	if n := sent.Load(); n != 1 {
		t.Errorf("sent %d times:\n%s", n, in.Log.String())
	}
}

// A collector that is away is no reason to fail, neither at the start nor at the end.
func TestUnreachableCollector(t *testing.T) {
	const nowhere = "http://127.0.0.1:1"
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", nowhere)
	in := sidecartest.Start(t, map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": nowhere}, "msg=ready")
	sidecartest.Dial(t, in.Socket).Wants(http.StatusOK, "PUT", "/v1/locks/k", `{"bind":"ttl","ttl_ms":60000}`)
	in.Stop()
	if err := in.End(t); err != nil {
		t.Error(err)
	}
	for _, line := range []string{"telemetry is sent", "not all spans and metrics were delivered before the end", "msg=stopped"} {
		if !strings.Contains(in.Log.String(), line) {
			t.Errorf("the log does not say %q:\n%s", line, in.Log.String())
		}
	}
}
