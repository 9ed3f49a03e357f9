package cli

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/client"
	"github.com/locksidecar/locksidecar/internal/testing/sidecartest"
)

// fakeSidecar is a server on a socket. Tests set its answers.
type fakeSidecar struct {
	socket string

	mu      sync.Mutex
	stats   string
	locks   []client.Lock
	waiting []client.Waiter
	queries []url.Values
	caching []string // Cache-Control of each question
	status  int      // if not zero: that of a refusal
}

func newFakeSidecar(t *testing.T) *fakeSidecar {
	t.Helper()
	f := &fakeSidecar{socket: sidecartest.Socket(t)}
	t.Cleanup(f.serve(t))
	return f
}

// serveHTTP serves on a socket.
func serveHTTP(t *testing.T, handle http.HandlerFunc) (socket string) {
	t.Helper()
	socket = sidecartest.Socket(t)
	t.Cleanup(serveOn(t, socket, handle))
	return socket
}

// serve serves until the returned function is called, which may be more than once.
func (f *fakeSidecar) serve(t *testing.T) (stop func()) {
	t.Helper()
	return serveOn(t, f.socket, f)
}

func serveOn(t *testing.T, socket string, handler http.Handler) (stop func()) {
	t.Helper()
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: patience}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = server.Serve(listener)
	}()
	return func() {
		_ = server.Close()
		<-ended
	}
}

func (f *fakeSidecar) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.queries = append(f.queries, r.URL.Query())
	f.caching = append(f.caching, r.Header.Get("Cache-Control"))
	switch {
	case f.status != 0:
		f.refuse(w, f.status, "internal", "it is\x1b]0;broken\x07 on purpose")
	case r.URL.Path == "/v1/locks":
		list(w, r.URL.Query(), "locks", f.locks)
	case r.URL.Path == "/v1/waiters":
		list(w, r.URL.Query(), "waiters", f.waiting)
	case r.URL.Path == "/v1/stats" && f.stats != "":
		_, _ = fmt.Fprint(w, f.stats)
	default:
		f.refuse(w, http.StatusNotFound, "not_found", "no such path")
	}
}

func (f *fakeSidecar) refuse(w http.ResponseWriter, status int, code, detail string) {
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]string{"code": code, "detail": detail})
}

// list answers page by page; the cursor is the number of the next item.
func list[T any](w http.ResponseWriter, query url.Values, name string, all []T) {
	limit, _ := strconv.Atoi(query.Get("limit"))
	from, _ := strconv.Atoi(query.Get("cursor"))
	to := min(from+limit, len(all))
	page := map[string]any{name: append([]T{}, all[from:to]...)}
	if to < len(all) {
		page["next_cursor"] = strconv.Itoa(to)
	}
	answer := json.NewEncoder(w)
	answer.SetEscapeHTML(false) // as the API does not
	_ = answer.Encode(page)
}

// holds makes the fake hold these locks.
func (f *fakeSidecar) holds(locks ...client.Lock) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.locks = locks
}

// lets makes these calls wait.
func (f *fakeSidecar) lets(wait ...client.Waiter) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.waiting = wait
}

// counts makes the fake know how to count.
func (f *fakeSidecar) counts(stats string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stats = stats
}

func (f *fakeSidecar) refuses(status int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.status = status
}

func (f *fakeSidecar) asked() []url.Values {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]url.Values(nil), f.queries...)
}

// listedLock is a lock as the API shows it.
func listedLock(key, pod, session string, age, expires time.Duration, waiters int) client.Lock {
	return client.Lock{Key: key, State: "held", LockMode: client.LockMode{Mode: "exclusive", HoldersCount: 1}, QueueLength: waiters, Holder: &client.Holder{
		Pod: pod, Session: &session, HeldMS: age.Milliseconds(), ExpiresInMS: expires.Milliseconds(),
	}}
}
