package sidecar_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/internal/exitcode"
	"github.com/locksidecar/locksidecar/internal/testing/sidecartest"
)

func TestServesAndStops(t *testing.T) {
	in := sidecartest.Start(t, nil, "msg=ready")
	app := sidecartest.Dial(t, in.Socket)
	app.Wants(http.StatusOK, "GET", "/readyz", "")
	app.Wants(http.StatusOK, "PUT", "/v1/locks/k", `{"bind":"ttl","ttl_ms":60000}`)
	in.Stop()
	if err := in.End(t); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(in.Socket); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket is left behind: %v", err)
	}
	for _, line := range []string{"locksidecar starts", "version=test", "store=memory://", `reason="the test stops it"`, "msg=stopped"} {
		if !strings.Contains(in.Log.String(), line) {
			t.Errorf("the log does not say %q:\n%s", line, in.Log)
		}
	}
}

// While it drains it refuses locks and says so, but goes on serving those who
// hold one; it ends as soon as nobody does.
func TestDrainsUntilSessionsAreDone(t *testing.T) {
	in := sidecartest.Start(t, map[string]string{"DRAIN_TIMEOUT": "1h"}, "msg=ready")
	app, other := sidecartest.Dial(t, in.Socket), sidecartest.Dial(t, in.Socket)
	token := app.Acquire("k")
	in.Stop()
	in.Log.Await(t, "msg=stopping")
	app.Await(http.StatusServiceUnavailable, "/readyz")
	app.Wants(http.StatusOK, "GET", "/healthz", "") // alive while it drains
	if answer := other.Wants(http.StatusServiceUnavailable, "PUT", "/v1/locks/other", ""); !strings.Contains(answer, "shutting down") {
		t.Errorf("got %s", answer)
	}
	select {
	case err := <-in.Ended:
		t.Fatalf("ended while a session holds a lock: %v", err)
	default:
	}
	app.Wants(http.StatusOK, "DELETE", fmt.Sprintf("/v1/locks/k?token=%d", token), "")
	if err := in.End(t); err != nil {
		t.Error(err)
	}
}

func TestSecondRequestEndsTheDrain(t *testing.T) {
	in := sidecartest.Start(t, map[string]string{"DRAIN_TIMEOUT": "1h"}, "msg=ready")
	app := sidecartest.Dial(t, in.Socket)
	app.Acquire("k")
	in.Stop()
	in.Log.Await(t, "msg=stopping")
	in.Hurry()
	if err := in.End(t); err != nil {
		t.Error(err)
	}
	if !strings.Contains(in.Log.String(), "second request to stop") {
		t.Error(in.Log)
	}
	app.Closed()
}

func TestDrainTimeout(t *testing.T) {
	in := sidecartest.Start(t, map[string]string{"DRAIN_TIMEOUT": "20ms"}, "msg=ready")
	app := sidecartest.Dial(t, in.Socket)
	app.Acquire("k")
	in.Stop()
	if err := in.End(t); err != nil {
		t.Error(err)
	}
	if !strings.Contains(in.Log.String(), "after the drain timeout") {
		t.Error(in.Log)
	}
	app.Closed()
}

// An unreachable database is no reason not to start: it is waited for, and a
// stop works meanwhile.
func TestStartsWithoutItsDatabase(t *testing.T) {
	in := sidecartest.Start(t, map[string]string{"STORE_URL": "postgres://u:secret@127.0.0.1:1/d"}, "not ready yet")
	app := sidecartest.Dial(t, in.Socket)
	app.Wants(http.StatusOK, "GET", "/healthz", "")
	app.Wants(http.StatusServiceUnavailable, "GET", "/readyz", "")
	app.Wants(http.StatusServiceUnavailable, "PUT", "/v1/locks/k", "")
	in.Stop()
	if err := in.End(t); err != nil {
		t.Error(err)
	}
	if text := in.Log.String(); strings.Contains(text, "secret") || strings.Contains(text, "msg=ready") {
		t.Error(text)
	}
}

// A sidecar that was killed leaves its name beside the socket. The next one there
// finds it; a clean stop leaves nothing.
func TestPredecessors(t *testing.T) {
	dead := "test-host-0123abcd"
	socket := sidecartest.Socket(t)
	file := socket + ".instance"
	if err := os.WriteFile(file, []byte(dead+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	in := sidecartest.Start(t, map[string]string{"SOCKET": socket}, "msg=ready")
	if !strings.Contains(in.Log.String(), "predecessors=1") {
		t.Errorf("the log does not say how many there are:\n%s", in.Log)
	}
	_, rest, _ := strings.Cut(in.Log.String(), "instance=")
	own, _, _ := strings.Cut(rest, "\n")
	if content, err := os.ReadFile(file); err != nil || string(content) != own+"\n" {
		t.Errorf("the file has %q, %v; want %q", content, err, own)
	}
	in.Stop()
	if err := in.End(t); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(file); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("left behind: %v", err)
	}
}

// A predecessor whose leases cannot be revoked yet stays in the record, and the sidecar is not
// ready.
func TestPredecessorsWithoutADatabase(t *testing.T) {
	socket := sidecartest.Socket(t)
	file := socket + ".instance"
	if err := os.WriteFile(file, []byte("test-host-0123abcd\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	in := sidecartest.Start(t, map[string]string{"SOCKET": socket, "STORE_URL": "postgres://u@127.0.0.1:1/d"}, "not ready yet")
	in.Stop()
	if err := in.End(t); err != nil {
		t.Error(err)
	}
	content, err := os.ReadFile(file)
	if names := strings.Fields(string(content)); err != nil || len(names) != 2 || names[0] != "test-host-0123abcd" {
		t.Errorf("the file has %q, %v", content, err)
	}
}

// A sidecar that does not get the socket does not touch the record of its owner.
func TestSecondSidecarLeavesTheRecordAlone(t *testing.T) {
	in := sidecartest.Start(t, nil, "msg=ready")
	before, err := os.ReadFile(in.Socket + ".instance")
	if err != nil {
		t.Fatal(err)
	}
	err = sidecartest.Run(t, map[string]string{"SOCKET": in.Socket}).End(t)
	if exitcode.Of(err) != exitcode.CannotOpen || !strings.Contains(err.Error(), in.Socket) {
		t.Errorf("got %v", err)
	}
	if after, err := os.ReadFile(in.Socket + ".instance"); err != nil || !bytes.Equal(after, before) {
		t.Errorf("the file has %q, had %q, %v", after, before, err)
	}
}

// The file only makes the next start faster, so a sidecar starts without it.
func TestUnusableInstanceFile(t *testing.T) {
	socket := sidecartest.Socket(t)
	if err := os.Mkdir(socket+".instance", 0o700); err != nil {
		t.Fatal(err)
	}
	in := sidecartest.Start(t, map[string]string{"SOCKET": socket}, "msg=ready")
	in.Stop()
	if err := in.End(t); err != nil {
		t.Error(err)
	}
}
