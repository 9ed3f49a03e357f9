package cli

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/config"
	"github.com/locksidecar/locksidecar/internal/testing/logtest"
)

// patience is how long a test waits for what must happen.
const patience = 30 * time.Second

// served is a run() under way.
type served struct {
	socket      string
	log         *logLines
	stop, hurry context.CancelFunc
	ended       chan error
}

// serve starts a sidecar and waits for its log to say so.
func serve(t *testing.T, env map[string]string, until string) *served {
	t.Helper()
	in := &served{socket: shortSocket(t), log: newLogLines(), ended: make(chan error, 1)}
	full := map[string]string{"LOCKSIDECAR_SOCKET": in.socket}
	for name, value := range env {
		if !strings.HasPrefix(name, "OTEL_") {
			name = "LOCKSIDECAR_" + name
		}
		full[name] = value
	}
	cfg, _, err := config.Load(t.Context(), config.FromMap(full))
	if err != nil {
		t.Fatal(err)
	}
	stop, cancelStop := context.WithCancelCause(t.Context())
	hurry, cancelHurry := context.WithCancel(t.Context())
	in.stop, in.hurry = func() { cancelStop(errors.New("the test stops it")) }, cancelHurry
	lookup := func(name string) (string, bool) { value, ok := full[name]; return value, ok }
	lines := newLog(in.log, slog.LevelInfo, config.LogText)
	go func() {
		err := run(stopping{stop, hurry}, cfg, lines, "test", lookup)
		lines.Stop()
		in.ended <- err
	}()
	t.Cleanup(func() {
		in.stop()
		in.hurry()
		_ = in.end(t)
	})
	in.log.await(t, until)
	return in
}

// end waits until run has returned, and returns its error.
func (in *served) end(t *testing.T) error {
	t.Helper()
	select {
	case err := <-in.ended:
		in.ended <- err
		return err
	case <-time.After(patience):
		t.Fatalf("it does not end; its log:\n%s", in.log.text())
		return nil
	}
}

// command runs a command line against the sidecar.
func (in *served) command(args ...string) (stdout string, err error) {
	return command(append([]string{"--socket", in.socket}, args...)...)
}

func command(args ...string) (stdout string, err error) {
	var out, errOut bytes.Buffer
	err = execute(&app{source: config.FromMap(nil)}, args, &out, &errOut)
	return out.String(), err
}

// shortSocket is a path that no test's name makes too long.
func shortSocket(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "ls")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, "s")
}

// logLines keeps what is logged, and tells when it has changed.
type logLines struct {
	logtest.Log
	changed chan struct{}
}

func newLogLines() *logLines { return &logLines{changed: make(chan struct{}, 1)} }

func (l *logLines) Write(p []byte) (int, error) {
	n, err := l.Log.Write(p)
	select {
	case l.changed <- struct{}{}:
	default:
	}
	return n, err
}

func (l *logLines) text() string { return l.String() }

func (l *logLines) await(t *testing.T, part string) {
	t.Helper()
	late := time.After(patience)
	for !strings.Contains(l.text(), part) {
		select {
		case <-l.changed:
		case <-late:
			t.Fatalf("the log does not say %q:\n%s", part, l.text())
		}
	}
}
