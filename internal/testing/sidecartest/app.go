package sidecartest

import (
	"errors"
	"net/http"
	"net/url"
	"os"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testing/wire"
)

// App is a client with one connection, as apps have.
type App struct {
	t testing.TB
	*wire.Conn
}

// Dial connects to a sidecar.
func Dial(t testing.TB, socket string) *App {
	t.Helper()
	conn, err := wire.Dial(socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return &App{t, conn}
}

// Call makes a call.
func (a *App) Call(method, path, body string) (status int, answer string) {
	a.t.Helper()
	got, err := a.Conn.Call(patience, method, path, body)
	if err != nil {
		a.t.Fatalf("%s %s: %v", method, path, err)
	}
	return got.Status, string(got.Body)
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
	got, err := a.Conn.Call(patience, "PUT", "/v1/locks/"+url.PathEscape(key), "")
	if err != nil || got.Status != http.StatusOK {
		a.t.Fatalf("%s: %d %s, %v", key, got.Status, got.Body, err)
	}
	return got.Token
}

// Await asks until the answer has a status.
func (a *App) Await(status int, path string) {
	a.t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) { // the pause of a poll
		got, _ := a.Call("GET", path, "")
		if got == status {
			return
		}
		if time.Now().After(end) {
			a.t.Fatalf("%s: %d, waited in vain for %d", path, got, status)
		}
	}
}

// Closed fails the test unless the sidecar has closed the connection.
func (a *App) Closed() {
	a.t.Helper()
	_ = a.SetDeadline(time.Now().Add(patience))
	if _, err := a.In.ReadByte(); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		a.t.Errorf("the connection is not closed: %v", err)
	}
}
