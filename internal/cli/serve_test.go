package cli

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/config"
	"github.com/locksidecar/locksidecar/internal/exitcode"
	"github.com/locksidecar/locksidecar/internal/testing/logtest"
	"github.com/locksidecar/locksidecar/internal/testing/sidecartest"
)

// TestServeListensOnTheSocketOfTheFlag: --socket wins over the variable, and is understood as in
// other commands when it is relative.
func TestServeListensOnTheSocketOfTheFlag(t *testing.T) {
	wanted := sidecartest.Socket(t)
	t.Chdir(filepath.Dir(wanted))
	for _, flag := range []string{wanted, "relative"} {
		ctx, stop := context.WithCancel(t.Context())
		log, ended := &logtest.Log{}, make(chan error, 1)
		root := newRoot(&app{source: config.FromMap(map[string]string{
			"LOCKSIDECAR_SOCKET": "/no/such/folder/s", "LOCKSIDECAR_LOG_FORMAT": "text",
		})})
		root.SetArgs([]string{"serve", "--socket", flag})
		root.SetErr(log)
		go func() { ended <- root.ExecuteContext(ctx) }()
		log.Await(t, "only the apps of this sidecar exclude each other") // no store is named
		log.Await(t, "msg=ready")
		if _, err := command("--socket", flag, "health"); err != nil {
			t.Errorf("%s: %v\n%s", flag, err, log.String())
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// The exit code says why serve has ended.
func TestServeFailsWhereAnotherServes(t *testing.T) {
	in := serve(t, nil)
	t.Setenv("LOCKSIDECAR_SOCKET", in.Socket)
	t.Setenv("LOCKSIDECAR_STORE_URL", "memory://")
	err := execute(&app{source: config.Environment()}, []string{"serve"}, io.Discard, io.Discard)
	if exitcode.Of(err) != exitcode.CannotOpen || !strings.Contains(err.Error(), in.Socket) {
		t.Errorf("got %v", err)
	}
}

// TestDurationsInTheLog: a duration is text with its unit. As a number of nanoseconds nobody can read it.
func TestDurationsInTheLog(t *testing.T) {
	for _, format := range []config.LogFormat{config.LogText, config.LogJSON} {
		out := &bytes.Buffer{}
		log := newLog(out, slog.LevelInfo, format)
		slog.New(log).With("with", time.Second).Info("a line", "left", 13997*time.Millisecond, slog.Group("g", "in", time.Minute))
		log.Stop()
		for _, want := range []string{"13.997s", "1m0s", "1s"} {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%s: no %q in %s", format, want, out)
			}
		}
	}
}
