package sidecar_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/config"
	"github.com/locksidecar/locksidecar/internal/hostfolder"
	"github.com/locksidecar/locksidecar/internal/logging"
	"github.com/locksidecar/locksidecar/internal/sidecar"
	"github.com/locksidecar/locksidecar/internal/testing/await"
	"github.com/locksidecar/locksidecar/internal/testing/logtest"
	"github.com/locksidecar/locksidecar/internal/testing/sidecartest"
)

// A lock server that is stopped waits for the next one no longer than the drain timeout, which is otherwise 10 s.
// Proves: promise 8
func TestLockServerThatIsStoppedSoon(t *testing.T) {
	const otherwise = 10 * time.Second
	dir, err := os.MkdirTemp("", "ls") // the paths of sockets are short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	folder := hostfolder.Folder(dir)
	v := hostfolder.Volume{ID: "csi-1", Target: "/k/pods/u-1", Pod: hostfolder.Pod{Namespace: "shop", Name: "web", UID: "u-1"}}
	for _, path := range []string{folder.Volumes(), folder.Server(os.Geteuid()), folder.Pod(v.Key())} {
		if err := os.MkdirAll(path, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := folder.Describe(v, os.Getegid()); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"LOCKSIDECAR_STORE_URL": "memory://", "LOCKSIDECAR_NODE_FOLDER": dir, "LOCKSIDECAR_DRAIN_TIMEOUT": "100ms"}
	cfg, _, err := config.LoadNode(config.FromMap(env))
	if err != nil {
		t.Fatal(err)
	}
	var log logtest.Log
	lines := logging.New(&log, func(w io.Writer) slog.Handler { return slog.NewTextHandler(w, nil) })
	ctx, stop := context.WithCancelCause(t.Context())
	ended := make(chan error, 1)
	lookup := func(name string) (string, bool) { value, ok := env[name]; return value, ok }
	go func() {
		err := sidecar.RunNode(ctx, t.Context(), sidecar.Options{Config: cfg, Version: "test", Log: lines, Lookup: lookup})
		lines.Stop()
		ended <- err
	}()
	log.Await(t, "msg=ready")
	app := sidecartest.Dial(t, folder.Socket(v.Key()))
	app.Acquire("k")
	began := time.Now()
	stop(errors.New("the test stops it"))
	if err := await.Receive(t, ended, "the end"); err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took >= otherwise || !strings.Contains(log.String(), "after the drain timeout") {
		t.Errorf("it ended after %s:\n%s", took, log.String())
	}
	app.Closed()
}
