package cli

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/config"
	"github.com/locksidecar/locksidecar/internal/exitcode"
)

func TestServesAndStops(t *testing.T) {
	in := serve(t, nil, "msg=ready")
	if out, err := in.command("health", "--ready"); err != nil || out != "ready\n" {
		t.Errorf("%q, %v", out, err)
	}
	if out, err := in.command("acquire", "k", "--ttl", "60s"); err != nil || strings.Trim(out, "0123456789") != "\n" {
		t.Errorf("a token alone is expected: %q, %v", out, err)
	}
	in.stop()
	if err := in.end(t); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(in.socket); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket is left behind: %v", err)
	}
	if _, err := in.command("health"); exitcode.Of(err) != exitcode.Unavailable {
		t.Errorf("got %v", err)
	}
	for _, line := range []string{"locksidecar starts", "version=", "store=memory://", `reason="the test stops it"`, "msg=stopped"} {
		if !strings.Contains(in.log.text(), line) {
			t.Errorf("the log does not say %q:\n%s", line, in.log.text())
		}
	}
}

// While it drains it refuses locks and says so, but goes on serving those who
// hold one; it ends as soon as nobody does.
func TestDrainsUntilSessionsAreDone(t *testing.T) {
	in := serve(t, map[string]string{"DRAIN_TIMEOUT": "1h"}, "msg=ready")
	app := dialApp(t, in.socket)
	token := app.acquire("k")
	in.stop()
	in.log.await(t, "msg=stopping")
	app.awaitStatus("GET", "/readyz", "", http.StatusServiceUnavailable)
	if _, err := in.command("health"); err != nil {
		t.Errorf("alive while it drains: %v", err)
	}
	if _, err := in.command("acquire", "other", "--ttl", "1s"); exitcode.Of(err) != exitcode.Unavailable || !strings.Contains(err.Error(), "shutting down") {
		t.Errorf("got %v", err)
	}
	select {
	case err := <-in.ended:
		t.Fatalf("ended while a session holds a lock: %v", err)
	default:
	}
	if status := app.call("DELETE", fmt.Sprintf("/v1/locks/k?token=%d", token), ""); status != http.StatusOK {
		t.Errorf("release: %d", status)
	}
	if err := in.end(t); err != nil {
		t.Error(err)
	}
}

func TestSecondRequestEndsTheDrain(t *testing.T) {
	in := serve(t, map[string]string{"DRAIN_TIMEOUT": "1h"}, "msg=ready")
	app := dialApp(t, in.socket)
	app.acquire("k")
	in.stop()
	in.log.await(t, "msg=stopping")
	in.hurry()
	if err := in.end(t); err != nil {
		t.Error(err)
	}
	if !strings.Contains(in.log.text(), "asked again to stop") {
		t.Error(in.log.text())
	}
	app.closed()
}

func TestDrainTimeout(t *testing.T) {
	in := serve(t, map[string]string{"DRAIN_TIMEOUT": "20ms"}, "msg=ready")
	app := dialApp(t, in.socket)
	app.acquire("k")
	in.stop()
	if err := in.end(t); err != nil {
		t.Error(err)
	}
	if !strings.Contains(in.log.text(), "after the drain timeout") {
		t.Error(in.log.text())
	}
	app.closed()
}

// An unreachable database is no reason not to start: it is waited for, and a
// stop works meanwhile.
func TestStartsWithoutItsDatabase(t *testing.T) {
	in := serve(t, map[string]string{"STORE_URL": "postgres://u:secret@127.0.0.1:1/d"}, "not ready yet")
	if _, err := in.command("health"); err != nil {
		t.Error(err)
	}
	if _, err := in.command("health", "--ready"); exitcode.Of(err) != exitcode.Unavailable {
		t.Errorf("got %v", err)
	}
	if _, err := in.command("acquire", "k", "--ttl", "1s"); exitcode.Of(err) != exitcode.Unavailable {
		t.Errorf("got %v", err)
	}
	in.stop()
	if err := in.end(t); err != nil {
		t.Error(err)
	}
	if text := in.log.text(); strings.Contains(text, "secret") || strings.Contains(text, "msg=ready") {
		t.Error(text)
	}
}

// TestServeListensOnTheSocketOfTheFlag: --socket wins over the variable, and is understood as in
// other commands when it is relative.
func TestServeListensOnTheSocketOfTheFlag(t *testing.T) {
	wanted := shortSocket(t)
	t.Chdir(filepath.Dir(wanted))
	for _, flag := range []string{wanted, "relative"} {
		ctx, stop := context.WithCancel(t.Context())
		log, ended := newLogLines(), make(chan error, 1)
		root := newRoot(&app{source: config.FromMap(map[string]string{
			"LOCKSIDECAR_SOCKET": "/no/such/folder/s", "LOCKSIDECAR_LOG_FORMAT": "text",
		})})
		root.SetArgs([]string{"serve", "--socket", flag})
		root.SetErr(log)
		go func() { ended <- root.ExecuteContext(ctx) }()
		log.await(t, "only the apps of this sidecar exclude each other") // no store is named
		log.await(t, "msg=ready")
		if _, err := command("--socket", flag, "health"); err != nil {
			t.Errorf("%s: %v\n%s", flag, err, log.text())
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

func TestSocketInUse(t *testing.T) {
	in := serve(t, nil, "msg=ready")
	t.Setenv("LOCKSIDECAR_SOCKET", in.socket)
	t.Setenv("LOCKSIDECAR_STORE_URL", "memory://")
	err := runFromEnvironment(t)
	if exitcode.Of(err) != exitcode.CannotOpen || !strings.Contains(err.Error(), in.socket) {
		t.Errorf("got %v", err)
	}
}

// Signals, for real: the first stops, the second hurries.
func TestSignals(t *testing.T) {
	s, release := onSignals(t.Context())
	defer release()
	self := os.Getpid()
	if err := syscall.Kill(self, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-s.stop.Done()
	if s.hurry.Err() != nil {
		t.Error("one signal is no hurry")
	}
	if err := syscall.Kill(self, syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	<-s.hurry.Done()
}

func TestReleasedSignalsLeaveNothing(t *testing.T) {
	s, release := onSignals(t.Context())
	release()
	if s.stop.Err() == nil || s.hurry.Err() == nil {
		t.Error("contexts are left open")
	}
}

// appConn is a client with one connection, as apps have.
type appConn struct {
	t    *testing.T
	conn net.Conn
	in   *bufio.Reader
}

func dialApp(t *testing.T, socket string) *appConn {
	t.Helper()
	conn, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(patience))
	return &appConn{t, conn, bufio.NewReader(conn)}
}

func (a *appConn) call(method, path, body string) int {
	a.t.Helper()
	status, _ := a.exchange(method, path, body)
	return status
}

func (a *appConn) exchange(method, path, body string) (int, string) {
	a.t.Helper()
	fmt.Fprintf(a.conn, "%s %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s", method, path, len(body), body)
	resp, err := http.ReadResponse(a.in, nil)
	if err != nil {
		a.t.Fatalf("%s %s: %v", method, path, err)
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		a.t.Fatal(err)
	}
	return resp.StatusCode, string(answer)
}

// acquire takes a lock for the connection's session and returns its token.
func (a *appConn) acquire(key string) (token int64) {
	a.t.Helper()
	status, answer := a.exchange("PUT", lockPath(key), "")
	if status != http.StatusOK {
		a.t.Fatalf("acquire: %d %s", status, answer)
	}
	_, rest, _ := strings.Cut(answer, `"token":`)
	if _, err := fmt.Sscanf(rest, "%d", &token); err != nil {
		a.t.Fatal(err)
	}
	return token
}

// awaitStatus asks until the answer has a status.
func (a *appConn) awaitStatus(method, path, body string, status int) {
	a.t.Helper()
	for a.call(method, path, body) != status {
		time.Sleep(time.Millisecond) // the pause of a poll; the deadline ends it
	}
}

// closed fails the test unless the sidecar has closed the connection.
func (a *appConn) closed() {
	a.t.Helper()
	if _, err := a.in.ReadByte(); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		a.t.Errorf("the connection is not closed: %v", err)
	}
}

// A sidecar that was killed leaves its name beside the socket. The next one there
// finds it; a clean stop leaves nothing.
func TestPredecessors(t *testing.T) {
	dead := "test-host-0123abcd"
	socket := shortSocket(t)
	file := socket + ".instance"
	if err := os.WriteFile(file, []byte(dead+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	in := serve(t, map[string]string{"SOCKET": socket}, "msg=ready")
	if !strings.Contains(in.log.text(), "predecessors=1") {
		t.Errorf("the log does not tell of it:\n%s", in.log.text())
	}
	_, rest, _ := strings.Cut(in.log.text(), "instance=")
	own, _, _ := strings.Cut(rest, "\n")
	if content, err := os.ReadFile(file); err != nil || string(content) != own+"\n" {
		t.Errorf("the file has %q, %v; want %q", content, err, own)
	}
	in.stop()
	if err := in.end(t); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(file); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("left behind: %v", err)
	}
}

// What cannot be buried yet is remembered, and keeps the sidecar from being ready.
func TestPredecessorsWithoutADatabase(t *testing.T) {
	socket := shortSocket(t)
	file := socket + ".instance"
	if err := os.WriteFile(file, []byte("test-host-0123abcd\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	in := serve(t, map[string]string{"SOCKET": socket, "STORE_URL": "postgres://u@127.0.0.1:1/d"}, "not ready yet")
	in.stop()
	if err := in.end(t); err != nil {
		t.Error(err)
	}
	content, err := os.ReadFile(file)
	if names := strings.Fields(string(content)); err != nil || len(names) != 2 || names[0] != "test-host-0123abcd" {
		t.Errorf("the file has %q, %v", content, err)
	}
}

// Whoever does not get the socket does not touch what its owner has written.
func TestSecondSidecarLeavesTheNamesAlone(t *testing.T) {
	in := serve(t, nil, "msg=ready")
	before, err := os.ReadFile(in.socket + ".instance")
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("LOCKSIDECAR_SOCKET", in.socket)
	t.Setenv("LOCKSIDECAR_STORE_URL", "memory://")
	if err := runFromEnvironment(t); exitcode.Of(err) != exitcode.CannotOpen {
		t.Errorf("got %v", err)
	}
	if after, err := os.ReadFile(in.socket + ".instance"); err != nil || !bytes.Equal(after, before) {
		t.Errorf("the file has %q, had %q, %v", after, before, err)
	}
}

func TestUnusableInstanceFile(t *testing.T) {
	socket := shortSocket(t)
	if err := os.Mkdir(socket+".instance", 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("LOCKSIDECAR_SOCKET", socket)
	t.Setenv("LOCKSIDECAR_STORE_URL", "memory://")
	if err := runFromEnvironment(t); exitcode.Of(err) != exitcode.CannotOpen || !strings.Contains(err.Error(), socket+".instance") {
		t.Errorf("got %v", err)
	}
}
