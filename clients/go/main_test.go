package locksidecar_test

import (
	"context"
	"errors"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	locksidecar "github.com/locksidecar/locksidecar/clients/go"
	"github.com/locksidecar/locksidecar/clients/go/locksidecartest"
)

// patience is for what must happen soon. A busy machine may need long.
const patience = time.Minute

func TestMain(m *testing.M) {
	if child := os.Getenv(childVariable); child != "" {
		os.Exit(children[child]())
	}
	end := forExamples()
	code := m.Run()
	end()
	if left := leaked(); code == 0 && left != "" {
		_, _ = os.Stderr.WriteString("goroutines of the client are left after all tests:\n" + left)
		code = 1
	}
	os.Exit(code)
}

// forExamples starts the sidecar of the examples, because an example has no testing.T.
func forExamples() (end func()) {
	s, err := locksidecartest.Launch(nil)
	if err != nil {
		_, _ = os.Stderr.WriteString("the examples have no sidecar: " + err.Error() + "\n")
		return func() {}
	}
	_ = os.Setenv("LOCKSIDECAR_SOCKET", s.Socket)
	return s.Close
}

// leaked are the goroutines of closed clients.
func leaked() (left string) {
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		buffer := make([]byte, 1<<20)
		left = ""
		for stack := range strings.SplitSeq(string(buffer[:runtime.Stack(buffer, true)]), "\n\n") {
			if strings.Contains(stack, "clients/go.") || strings.Contains(stack, "net/http.(*persistConn)") {
				left += stack + "\n\n"
			}
		}
		if left == "" {
			return ""
		}
	}
	return left
}

func start(t *testing.T) (*locksidecartest.Sidecar, *locksidecar.Client) {
	t.Helper()
	s := locksidecartest.Start(t, nil)
	c := s.Client()
	return s, c
}

// within runs a function, which must end soon.
func within(t *testing.T, what string, run func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); run() }()
	ends(t, what, done)
}

// ends waits for a channel.
func ends(t *testing.T, what string, done <-chan struct{}) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(patience):
		buffer := make([]byte, 1<<20)
		t.Fatalf("not within %s: %s\n%s", patience, what, buffer[:runtime.Stack(buffer, true)])
	}
}

func must[T any](value T, err error) func(t *testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// is checks the kind of an error.
func is(t *testing.T, err, kind error) {
	t.Helper()
	_ = errorOf(t, err, kind)
}

// errorOf is an error of a kind.
func errorOf(t *testing.T, err, kind error) *locksidecar.Error {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Fatalf("the error is %v; it must be %v", err, kind)
	}
	var e *locksidecar.Error
	_ = errors.As(err, &e)
	return e
}

func waitsFor(t *testing.T, c *locksidecar.Client, key string, calls int) {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(2 * time.Millisecond) {
		info, err := c.Get(t.Context(), key, locksidecar.Fresh())
		if err == nil && info.QueueLength == calls {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d calls must wait for %s: %+v, %v", calls, key, info, err)
		}
	}
}

func isFree(t *testing.T, c *locksidecar.Client, key string) {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(2 * time.Millisecond) {
		info, err := c.Get(t.Context(), key, locksidecar.Fresh())
		if err == nil && !info.Held {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s must be free: %+v, %v", key, info, err)
		}
	}
}

// nothing is a function under a lock.
func nothing(context.Context, *locksidecar.Lock) error { return nil }
