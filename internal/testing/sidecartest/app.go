package sidecartest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"
)

// App is a client with one connection, as apps have.
type App struct {
	t    testing.TB
	conn net.Conn
	in   *bufio.Reader
}

// Dial connects to a sidecar.
func Dial(t testing.TB, socket string) *App {
	t.Helper()
	conn, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(patience))
	return &App{t, conn, bufio.NewReader(conn)}
}

// Call makes a call.
func (a *App) Call(method, path, body string) (status int, answer string) {
	a.t.Helper()
	fmt.Fprintf(a.conn, "%s %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s", method, path, len(body), body)
	resp, err := http.ReadResponse(a.in, nil)
	if err != nil {
		a.t.Fatalf("%s %s: %v", method, path, err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		a.t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

// Wants makes a call that must be answered with a status, and returns the answer.
func (a *App) Wants(status int, method, path, body string) (answer string) {
	a.t.Helper()
	got, answer := a.Call(method, path, body)
	if got != status {
		a.t.Fatalf("%s %s: %d %s; want %d", method, path, got, answer, status)
	}
	return answer
}

// Acquire takes a lock for the connection's session and returns its token.
func (a *App) Acquire(key string) (token int64) {
	a.t.Helper()
	answer := a.Wants(http.StatusOK, "PUT", "/v1/locks/"+url.PathEscape(key), "")
	_, rest, _ := strings.Cut(answer, `"token":`)
	if _, err := fmt.Sscanf(rest, "%d", &token); err != nil {
		a.t.Fatal(err)
	}
	return token
}

// Await asks until the answer has a status.
func (a *App) Await(status int, path string) {
	a.t.Helper()
	for got := 0; got != status; got, _ = a.Call("GET", path, "") {
		time.Sleep(time.Millisecond) // the pause of a poll; the connection's deadline ends it
	}
}

// Closed fails the test unless the sidecar has closed the connection.
func (a *App) Closed() {
	a.t.Helper()
	if _, err := a.in.ReadByte(); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		a.t.Errorf("the connection is not closed: %v", err)
	}
}
