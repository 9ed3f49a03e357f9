package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/locksidecar/locksidecar/internal/config"
)

func TestBadTelemetryIsAConfigurationError(t *testing.T) {
	err := execute(config.FromMap(map[string]string{
		"LOCKSIDECAR_SOCKET": shortSocket(t), "OTEL_TRACES_EXPORTER": "jaeger",
	}), []string{"serve"}, io.Discard, io.Discard)
	if exitCode(err) != exitConfig || !strings.Contains(err.Error(), `OTEL_TRACES_EXPORTER is "jaeger"; allowed: otlp, console, none`) {
		t.Errorf("exit code %d: %v", exitCode(err), err)
	}
}

// What was not sent before the end is sent at the end, after all else has stopped.
func TestTelemetryIsFlushedLast(t *testing.T) {
	var sent atomic.Int32
	log := &atomic.Pointer[logLines]{}
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		text := log.Load().text()
		if r.URL.Path == "/v1/metrics" && strings.Contains(text, "msg=stopping") && !strings.Contains(text, "msg=stopped") {
			sent.Add(1)
		}
	}))
	defer receiver.Close()
	t.Setenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", receiver.URL+"/v1/metrics")
	in := serve(t, map[string]string{"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": receiver.URL + "/v1/metrics"}, "msg=ready")
	log.Store(in.log)
	in.stop()
	if err := in.end(t); err != nil {
		t.Error(err)
	}
	if sent.Load() != 1 {
		t.Errorf("sent %d times between the stop and the end:\n%s", sent.Load(), in.log.text())
	}
}

// A collector that is away is no reason to fail, neither at the start nor at the end.
func TestUnreachableCollector(t *testing.T) {
	const nowhere = "http://127.0.0.1:1"
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", nowhere)
	in := serve(t, map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": nowhere}, "msg=ready")
	if _, err := in.command("acquire", "k", "--ttl", "60s"); err != nil {
		t.Error(err)
	}
	in.stop()
	if err := in.end(t); err != nil {
		t.Error(err)
	}
	for _, line := range []string{"telemetry is sent", "not all spans and figures were delivered before the end", "msg=stopped"} {
		if !strings.Contains(in.log.text(), line) {
			t.Errorf("the log does not say %q:\n%s", line, in.log.text())
		}
	}
}
