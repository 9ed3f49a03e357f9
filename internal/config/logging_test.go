package config

import (
	"log/slog"
	"strings"
	"testing"
)

// It needs nothing else: under Kubernetes a sidecar would miss its store's URL.
func TestLogging(t *testing.T) {
	env := map[string]string{"KUBERNETES_SERVICE_HOST": "10.0.0.1", "LOCKSIDECAR_LOG_LEVEL": ""}
	if level, format, err := Logging(FromMap(env)); err != nil || level != slog.LevelInfo || format != LogJSON {
		t.Errorf("got %v, %v, %v", level, format, err)
	}
	env["LOCKSIDECAR_LOG_LEVEL"], env["LOCKSIDECAR_LOG_FORMAT"] = "debug", "text"
	if level, format, err := Logging(FromMap(env)); err != nil || level != slog.LevelDebug || format != LogText {
		t.Errorf("got %v, %v, %v", level, format, err)
	}
	env["LOCKSIDECAR_LOG_LEVEL"], env["LOCKSIDECAR_LOG_FORMAT"] = "loud", "xml"
	_, _, err := Logging(FromMap(env))
	for _, part := range []string{`LOCKSIDECAR_LOG_LEVEL is "loud"`, `LOCKSIDECAR_LOG_FORMAT is "xml"`} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("got %v", err)
		}
	}
}
