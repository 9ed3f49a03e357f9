// Package sidecartest runs sidecars in the process of a test, and talks to them as an app does.
package sidecartest

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/config"
	"github.com/locksidecar/locksidecar/internal/logging"
	"github.com/locksidecar/locksidecar/internal/sidecar"
	"github.com/locksidecar/locksidecar/internal/testing/logtest"
)

// patience is how long a test waits for what must happen.
const patience = 30 * time.Second

// Sidecar is a [sidecar.Run] under way. Stop and Hurry end its contexts.
type Sidecar struct {
	Socket      string
	Log         *logtest.Log
	Stop, Hurry func()
	Ended       chan error
}

// Start starts a sidecar and waits for its log to have a text. env is its environment; only
// the names of OpenTelemetry are whole, to all others LOCKSIDECAR_ is added.
func Start(t testing.TB, env map[string]string, until string) *Sidecar {
	t.Helper()
	s := Run(t, env)
	s.Log.Await(t, until)
	return s
}

// Run is Start for a sidecar that may fail.
func Run(t testing.TB, env map[string]string) *Sidecar {
	t.Helper()
	full := map[string]string{"LOCKSIDECAR_SOCKET": Socket(t)}
	for name, value := range env {
		if !strings.HasPrefix(name, "OTEL_") {
			name = "LOCKSIDECAR_" + name
		}
		full[name] = value
	}
	cfg, _, err := config.Load(config.FromMap(full))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancelCause(t.Context())
	hurry, cancel := context.WithCancel(t.Context())
	s := &Sidecar{
		Socket: cfg.Socket, Log: &logtest.Log{}, Ended: make(chan error, 1),
		Stop: func() { stop(errors.New("the test stops it")) }, Hurry: cancel,
	}
	lines := logging.New(s.Log, func(w io.Writer) slog.Handler { return slog.NewTextHandler(w, nil) })
	lookup := func(name string) (string, bool) { value, ok := full[name]; return value, ok }
	go func() {
		err := sidecar.Run(ctx, hurry, sidecar.Options{Config: cfg, Version: "test", Log: lines, Lookup: lookup})
		lines.Stop()
		s.Ended <- err
	}()
	t.Cleanup(func() {
		s.Stop()
		s.Hurry()
		_ = s.End(t)
	})
	return s
}

// End waits until the sidecar has ended, and returns its error.
func (s *Sidecar) End(t testing.TB) error {
	t.Helper()
	select {
	case err := <-s.Ended:
		s.Ended <- err
		return err
	case <-time.After(patience):
		t.Fatalf("it does not end; its log:\n%s", s.Log)
		return nil
	}
}

// Socket is a path that no test's name makes too long.
func Socket(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "ls")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, "s")
}
