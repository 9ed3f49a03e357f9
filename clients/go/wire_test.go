package locksidecar

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"
)

// Events are found, whatever a later version writes between them, and however the connection cuts them.
func FuzzEvents(f *testing.F) {
	for _, between := range []string{"", ":\n\n", "id: 7\nretry: 10\n", "event: future\ndata: {}\n\n", ":\r\n\r\nevent:x\r\n\r\n", "data\n\n"} {
		f.Add([]byte(between), `{"key":"k","token":1}`)
	}
	f.Fuzz(func(t *testing.T, between []byte, data string) {
		if strings.ContainsAny(data, "\r\n") {
			return // one line, as the sidecar writes it
		}
		// The text between ends before the next event begins.
		text := append(slices.Clone(between), fmt.Sprintf("\n\n:\n\nevent: stop\ndata: %s\n\n", data)...)
		whole, cut := namedEvents(t, bytes.NewReader(text)), namedEvents(t, iotest.OneByteReader(bytes.NewReader(text)))
		if !slices.Equal(whole, cut) {
			t.Fatalf("%q, cut into bytes %q", whole, cut)
		}
		if len(whole) == 0 || whole[len(whole)-1] != "stop "+data {
			t.Fatalf("%q of %q", whole, text)
		}
	})
}

func namedEvents(t *testing.T, r io.Reader) (found []string) {
	t.Helper()
	lines := newEventReader(r)
	for {
		name, data, err := lines.next()
		if err != nil {
			return found
		}
		if name == "" || strings.ContainsAny(name+string(data), "\n") {
			t.Fatalf("the event %q, %q", name, data)
		}
		found = append(found, name+" "+string(data))
	}
}

func TestALineHasALimit(t *testing.T) {
	_, _, err := newEventReader(strings.NewReader("data: " + strings.Repeat("x", maxLine) + "\n")).next()
	if err == nil || !strings.Contains(err.Error(), "too long") {
		t.Errorf("a long line: %v", err)
	}
}

func TestUsualSocket(t *testing.T) {
	for _, c := range []struct {
		given, home string
		pod         bool
		want        string
	}{
		{"/tmp/x.sock", "/home/me", true, "/tmp/x.sock"},
		{"", "/home/me", true, podSocket},
		{"", "/home/me", false, "/home/me/.locksidecar/locksidecar.sock"},
		{"", "", false, podSocket},
		{"", "me", false, podSocket},
	} {
		env := map[string]string{"LOCKSIDECAR_SOCKET": c.given, "HOME": c.home}
		exists := func(path string) bool { return c.pod && path == "/run/locksidecar" }
		if got := usualSocket(func(name string) string { return env[name] }, exists); got != c.want {
			t.Errorf("%+v: %s", c, got)
		}
	}
}

// fake serves on a socket of its own.
func fake(t *testing.T, handle http.HandlerFunc) *Client {
	t.Helper()
	folder, err := os.MkdirTemp("", "ls-go")
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(folder, "s.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: handle, ReadHeaderTimeout: time.Minute}
	var served sync.WaitGroup
	served.Go(func() { _ = server.Serve(listener) })
	c := New(Config{Socket: socket, Timeout: 2 * time.Second, Reconnect: -1})
	t.Cleanup(func() {
		_ = c.Close()
		_ = server.Close()
		served.Wait()
		_ = os.RemoveAll(folder)
	})
	return c
}

// asSidecar answers as a sidecar: with the features and a session.
func asSidecar(w http.ResponseWriter, r *http.Request) bool {
	switch r.Method + " " + r.URL.Path {
	case "GET /v1":
		_, _ = io.WriteString(w, `{"version":"v0","api":"v1","namespace":"n","features":["wait","data"]}`)
	case "POST /v1/sessions":
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, ":\n\nevent: session\ndata: {\"session\":\"0123456789abcdef0123456789abcdef\",\"ttl_ms\":15000,\"expires_in_ms\":14000}\n\n")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	case "DELETE /v1/sessions/0123456789abcdef0123456789abcdef":
		_, _ = io.WriteString(w, `{"ended":true}`)
	default:
		return false
	}
	return true
}

const aGrant = `{"granted":true,"key":"k","token":7,"session":"s","bind":"session","reentry":1,"expires_in_ms":14000,"waited_ms":0,"acquired_at":"2026-01-02T15:04:05Z","mode":"exclusive","limit":null,"slot":null,"future":1}`

// cut ends the connection of a request without an answer.
func cut(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err == nil {
		_ = conn.Close()
	}
}

// Proves: client lost answer
// A release whose answer was lost is repeated, and that it is done already is its success. The transport does not send a release twice by itself.
func TestALostAnswerOfARelease(t *testing.T) {
	var releases atomic.Int32
	c := fake(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case asSidecar(w, r):
		case r.Method == http.MethodPut:
			_, _ = io.WriteString(w, aGrant)
		case releases.Add(1) == 1:
			cut(w)
		default:
			w.WriteHeader(http.StatusConflict)
			_, _ = io.WriteString(w, `{"code":"not_holder","reason":"released","detail":"it was released"}`)
		}
	})
	lock, err := c.Acquire(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	if err := lock.Release(); !errors.Is(err, ErrUnavailable) {
		t.Fatalf("the release without an answer: %v", err)
	}
	select {
	case <-lock.ctx.Done(): // by the repetition in the background
	case <-time.After(time.Minute):
		t.Fatal("nothing repeats the release")
	}
	if err := lock.Release(); err != nil {
		t.Errorf("the release once more: %v", err)
	}
	if released, done := lock.Released(); !done || !released.Free || releases.Load() != 2 {
		t.Errorf("%+v, %d calls", released, releases.Load())
	}
}

// Proves: client lost answer
// An acquire whose answer was lost, or whose caller has left, is withdrawn by its request id.
func TestALostAnswerOfAnAcquire(t *testing.T) {
	asked, withdrawn := make(chan string, 2), make(chan string, 2)
	c := fake(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case asSidecar(w, r):
		case r.Method == http.MethodPut:
			var body acquireBody
			_ = json.NewDecoder(r.Body).Decode(&body)
			asked <- body.RequestID
			if body.WaitMS == 0 {
				_, _ = io.WriteString(w, "{not JSON")
				return
			}
			<-r.Context().Done()
		default:
			withdrawn <- r.URL.Query().Get("request_id")
			_, _ = io.WriteString(w, `{"released":true}`)
		}
	})
	if _, err := c.Acquire(t.Context(), "k", Wait(0)); !errors.Is(err, ErrBadAnswer) {
		t.Errorf("a bad answer: %v", err)
	}
	if id := <-asked; id == "" || <-withdrawn != id {
		t.Error("another request was withdrawn")
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() {
		_, err := c.Acquire(ctx, "k")
		done <- err
	}()
	id := <-asked
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) || <-withdrawn != id {
		t.Errorf("a caller that left: %v", err)
	}
}

// News of a lock may come before its grant is read.
func TestEarlyNews(t *testing.T) {
	s := &session{grants: map[grantID]*grant{}, leases: map[int64]*lease{}, early: map[grantID][]sessionEvent{}, due: 1, id: "x", timeout: time.Second}
	s.life, s.cancel = context.WithCancelCause(t.Context())
	s.onEnd = func(*session) {}
	s.t = newTransport(&endpoint{name: "/none", socket: "/none"}, &Config{})
	defer s.t.close()
	defer s.cancel(nil)
	s.receive(sessionEvent{"stop", "k", 7, "one"})
	s.receive(sessionEvent{"stop", "k", 7, "two"})
	s.receive(sessionEvent{"lost", "k", 7, "forced"})
	w := wireGrant{Granted: true, Key: "k", Token: 7, Bind: BindSession, ExpiresInMS: 14_000}
	held, err := s.adopt([]wireGrant{w}, time.Now(), nil)
	if err != nil {
		t.Fatal(err)
	}
	s.answered()
	var reasons []string
	l := newLock(t.Context(), s, held[0], &w, &options{onStop: func(r Stopping) { reasons = append(reasons, r.Reason) }})
	if !slices.Equal(reasons, []string{"one", "two"}) {
		t.Errorf("the requests: %q", reasons)
	}
	var e *Error
	if !errors.As(l.Err(), &e) || e.Reason != "forced" || !errors.Is(context.Cause(l.Context()), ErrLockLost) {
		t.Errorf("the loss: %v", l.Err())
	}
	if len(s.early) != 0 || len(s.grants) != 0 {
		t.Errorf("left: %v, %v", s.early, s.grants)
	}
}

// A sidecar that lacks a feature is not asked for it.
func TestAnOldSidecar(t *testing.T) {
	c := fake(t, func(w http.ResponseWriter, r *http.Request) {
		if !asSidecar(w, r) {
			t.Errorf("it was asked %s %s", r.Method, r.URL)
		}
	})
	for name, option := range map[string]Option{"shared": Shared(), "hold": MaxHold(time.Second), "outcome": SkipIfDone(), "reentrant": Reentrant(), "bind_ttl": BindToTTL()} {
		if _, err := c.Acquire(t.Context(), "k", option); !errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := c.Stop(t.Context(), "k", ""); !errors.Is(err, ErrUnsupported) {
		t.Errorf("stop: %v", err)
	}
	for _, err := range c.Locks(t.Context(), Query{}) {
		if !errors.Is(err, ErrUnsupported) {
			t.Errorf("locks: %v", err)
		}
	}
}

// ErrUnavailable is any sidecar that cannot serve now. A limit is another thing.
func TestUnavailable(t *testing.T) {
	for _, code := range []string{"draining", "store_unavailable", "limit"} {
		c := fake(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "3")
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = fmt.Fprintf(w, `{"code":%q,"detail":"not now"}`, code)
		})
		var e *Error
		_, err := c.Get(t.Context(), "k")
		if !errors.As(err, &e) || errors.Is(err, ErrUnavailable) != (code != "limit") || errors.Is(err, ErrLimitReached) != (code == "limit") || e.RetryAfter != 3*time.Second {
			t.Errorf("%s: %+v", code, err)
		}
	}
	c := fake(t, func(w http.ResponseWriter, _ *http.Request) { cut(w) })
	if _, err := c.Get(t.Context(), "k"); !errors.Is(err, ErrUnavailable) {
		t.Errorf("connection_lost: %v", err)
	}
	nobody := New(Config{Socket: filepath.Join(t.TempDir(), "none"), Reconnect: -1})
	defer func() { _ = nobody.Close() }()
	if _, err := nobody.Get(t.Context(), "k"); !errors.Is(err, ErrUnavailable) {
		t.Errorf("unreachable: %v", err)
	}
}

// The text of an error is one printable line, whatever others have put into it.
func TestErrorsArePrintable(t *testing.T) {
	e := problemOf(503, []byte(`{"code":"store_unavailable","detail":"failed:\n\t10.0.0.1 \u001b]0;x\u0007"}`), time.Second, subject{key: "a\u202eb"})
	if text := e.Error(); strings.ContainsAny(text, "\n\t\x1b\x07\u202e") || !strings.Contains(text, "failed: 10.0.0.1") || !errors.Is(e, ErrUnavailable) {
		t.Errorf("%q", text)
	}
	if e := problemOf(500, []byte("<html>"), 0, subject{}); !errors.Is(e, ErrBadAnswer) {
		t.Errorf("%v", e)
	}
}

// tracer notes spans.
type tracer struct {
	mu    sync.Mutex
	spans []string
}

type spanKey struct{}

func (r *tracer) Start(ctx context.Context, span Span) (context.Context, func(SpanEnd)) {
	return context.WithValue(ctx, spanKey{}, "00-"+strings.Repeat("a", 32)+"-"+strings.Repeat("b", 16)+"-01"), func(end SpanEnd) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.spans = append(r.spans, fmt.Sprint(span.Name, span.Keys, span.Type, " ", span.Mode, span.Token != 0, " ", end.Result, end.Token != 0, end.Failed))
	}
}

func (r *tracer) Inject(ctx context.Context, header http.Header) {
	if parent, ok := ctx.Value(spanKey{}).(string); ok {
		header.Set("Traceparent", parent)
	}
}

func TestTraces(t *testing.T) {
	var parents sync.Map
	held := `{"code":"held","detail":"held","status":423}`
	c := fake(t, func(w http.ResponseWriter, r *http.Request) {
		if asSidecar(w, r) {
			if r.Header.Get("Traceparent") != "" {
				t.Error("the session belongs to no span")
			}
			return
		}
		parents.Store(r.Method, r.Header.Get("Traceparent"))
		if strings.HasSuffix(r.URL.Path, "/held") {
			w.WriteHeader(http.StatusLocked)
			_, _ = io.WriteString(w, held)
			return
		}
		if r.Method == http.MethodPut {
			_, _ = io.WriteString(w, aGrant)
			return
		}
		_, _ = io.WriteString(w, `{"released":true,"reentry":0,"held_ms":1}`)
	})
	traces := &tracer{}
	c.t.tracer = traces
	if err := c.Do(t.Context(), "job:1", func(ctx context.Context, _ *Lock) error {
		if ctx.Value(spanKey{}) != nil {
			t.Error("the span of the acquire is that of the work")
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Acquire(t.Context(), "held", Wait(0)); !errors.Is(err, ErrLockHeld) {
		t.Error(err)
	}
	want := []string{
		"lock.acquire[job:1]job exclusivefalse grantedtrue false", "lock.release[k] true releasedtrue false", "lock.acquire[held] exclusivefalse heldfalse false",
	}
	if !slices.Equal(traces.spans, want) {
		t.Errorf("the spans are %q", traces.spans)
	}
	for _, method := range []string{"PUT", "POST"} {
		if parent, _ := parents.Load(method); !strings.HasPrefix(fmt.Sprint(parent), "00-aaa") {
			t.Errorf("%s has %v", method, parent)
		}
	}
	c.t.tracer = nil
	if _, err := c.Acquire(WithTraceparent(t.Context(), "00-mine", "a=b"), "k"); err != nil {
		t.Fatal(err)
	}
	if parent, _ := parents.Load("PUT"); parent != "00-mine" {
		t.Errorf("the app's own: %v", parent)
	}
}

// A lock that is bound to its TTL is none of the session, so its calls do not name a session that may be over.
func TestALockOfATTLOutlivesTheSession(t *testing.T) {
	c := fake(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/v1":
			_, _ = io.WriteString(w, `{"version":"v0","features":["bind_ttl"]}`)
		case asSidecar(w, r):
		case r.Method == http.MethodPut:
			_, _ = io.WriteString(w, strings.Replace(aGrant, `"bind":"session"`, `"bind":"ttl"`, 1))
		case r.Header.Get("Lock-Session") != "":
			w.WriteHeader(http.StatusGone)
			_, _ = io.WriteString(w, `{"code":"session_ended","detail":"it is over"}`)
		default:
			_, _ = io.WriteString(w, `{"released":true,"reentry":0,"held_ms":1}`)
		}
	})
	lock, err := c.Acquire(t.Context(), "k", BindToTTL(), Wait(0))
	if err != nil {
		t.Fatal(err)
	}
	c.session.end()
	if err := lock.Err(); err != nil {
		t.Errorf("it is lost with the session: %v", err)
	}
	if err := lock.Release(); err != nil {
		t.Error(err)
	}
}

// The release of an entry names the request that made it, so a repeated one does not end two.
func TestTheReleaseOfAnEntryNamesIt(t *testing.T) {
	var entered, ended acquireBody
	c := fake(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/v1":
			_, _ = io.WriteString(w, `{"version":"v0","features":["reentrant"]}`)
		case asSidecar(w, r):
		case r.Method == http.MethodPut:
			_ = json.NewDecoder(r.Body).Decode(&entered)
			_, _ = io.WriteString(w, aGrant)
		default:
			_ = json.NewDecoder(r.Body).Decode(&ended)
			_, _ = io.WriteString(w, `{"released":true,"reentry":0,"held_ms":1}`)
		}
	})
	if err := c.Do(t.Context(), "k", func(context.Context, *Lock) error { return nil }, Reentrant(), Wait(0)); err != nil {
		t.Fatal(err)
	}
	if entered.RequestID == "" || ended.RequestID != entered.RequestID || !strings.HasPrefix(entered.Owner, "task-") {
		t.Errorf("entered by %+v, released by %q", entered, ended.RequestID)
	}
}
