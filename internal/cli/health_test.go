package cli

import (
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/exitcode"
	"github.com/locksidecar/locksidecar/internal/testing/sidecartest"
)

// wellAfter serves on the socket; the nth question and those after it are answered with 200.
func wellAfter(t *testing.T, socket string, nth int32) (questions *atomic.Int32) {
	t.Helper()
	questions = new(atomic.Int32)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if questions.Add(1) < nth {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server.Listener = listener
	server.Start()
	t.Cleanup(server.Close)
	return questions
}

func TestHealthWaits(t *testing.T) {
	socket := sidecartest.Socket(t)
	questions := wellAfter(t, socket, 3)
	if _, err := command("--socket", socket, "health"); exitcode.Of(err) != exitcode.Unavailable {
		t.Errorf("without --wait the first answer counts: %v", err)
	}
	if out, err := command("--socket", socket, "health", "--wait", "10s"); err != nil || out != "healthy\n" {
		t.Errorf("%q, %v", out, err)
	}
	if n := questions.Load(); n != 3 {
		t.Errorf("it asked %d times, want 3", n)
	}
}

// The socket need not be there yet.
func TestHealthWaitsForTheSocket(t *testing.T) {
	socket := sidecartest.Socket(t)
	ended := make(chan error, 1)
	go func() {
		_, err := command("--socket", socket, "health", "--ready", "--wait", "10s")
		ended <- err
	}()
	wellAfter(t, socket, 1)
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestHealthWaitsNoLonger(t *testing.T) {
	const wait = 500 * time.Millisecond
	hanging := sidecartest.Socket(t)
	listener, err := net.Listen("unix", hanging)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	for socket, says := range map[string]string{sidecartest.Socket(t): "no sidecar listens at", hanging: "does not answer in time"} {
		began := time.Now()
		_, err := command("--socket", socket, "health", "--wait", wait.String())
		took := time.Since(began)
		if exitcode.Of(err) != exitcode.Unavailable || !strings.Contains(err.Error(), "not healthy") || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", says, err)
		}
		if took < wait-healthPause || took > patience {
			t.Errorf("%s: it waited %s, want %s", says, took, wait)
		}
	}
	if _, err := command("health", "--wait", "-1s"); exitcode.Of(err) != exitcode.Usage {
		t.Errorf("a negative wait: %v", err)
	}
}
