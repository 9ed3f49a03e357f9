package cli

import (
	"context"
	"io"
	"path/filepath"
	"strings"
	"testing"

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
