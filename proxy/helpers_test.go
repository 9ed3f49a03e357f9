package proxy

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/locksidecar/locksidecar/internal/testing/apitest"
	"github.com/locksidecar/locksidecar/internal/testing/await"
	"github.com/locksidecar/locksidecar/internal/testing/logtest"
	"github.com/locksidecar/locksidecar/lease"
	"github.com/locksidecar/locksidecar/proxy/internal/conn"
	"github.com/locksidecar/locksidecar/proxy/internal/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// unhurried is a time that tests let pass on purpose, and that what must happen within it does
// not need, on a machine that stands still for a while either. Those tests are parallel ones:
// they sleep, most of the time.
const unhurried = 4 * time.Second

// logs collects what a server logs.
type logs struct{ logtest.Log }

func (l *logs) text() string { return l.String() }

// tempDir is a folder of the test alone. While a parallel one makes its socket, the whole
// process has the umask for that, and a folder that is made then could not be entered.
func tempDir(t testing.TB) string {
	t.Helper()
	conn.UmaskMu.Lock()
	defer conn.UmaskMu.Unlock()
	return t.TempDir()
}

type fixture struct {
	t testing.TB
	*Server
	locks *spy
	log   *logs
}

// start starts a server with a lock manager behind a spy, on a socket of its own.
func start(t testing.TB, change ...func(*Config)) *fixture {
	t.Helper()
	f := &fixture{t: t, locks: newSpy(t), log: &logs{}}
	cfg := testConfig(f.locks.Manager, slog.New(slog.NewTextHandler(f.log, nil)), filepath.Join(tempDir(t), "s"))
	for _, c := range change {
		c(&cfg)
	}
	f.Server = New(cfg)
	f.Server.locks = f.locks
	if err := f.Start(context.Background()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Stop)
	return f
}

// testConfig has what package config has by default.
func testConfig(locks *lease.Manager, log *slog.Logger, socket string) Config {
	return Config{
		Locks: locks, Logger: log, Version: "1.2.3", Socket: socket, SocketMode: 0o660,
		TTL: 15 * time.Second, MaxConns: 464, MaxBody: 64 << 10, MaxBodies: 64 << 20, Timeouts: defaultTimeouts,
	}
}

// client is a raw connection to a server.
type client struct {
	t testing.TB
	net.Conn
	r *bufio.Reader
	// undocumented: what it is answered cannot be, as its lock manager cannot be.
	undocumented bool
}

func (f *fixture) dial() *client {
	f.t.Helper()
	return dialTo(f.t, "unix", f.cfg.Socket)
}

func dialTo(t testing.TB, network, addr string) *client {
	t.Helper()
	nc, err := net.Dial(network, addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = nc.Close() })
	_ = nc.SetDeadline(time.Now().Add(await.Patience))
	return &client{t: t, Conn: nc, r: bufio.NewReader(nc)}
}

func (c *client) send(text string) {
	c.t.Helper()
	if _, err := io.WriteString(c.Conn, text); err != nil {
		c.t.Fatal(err)
	}
}

// request writes a request. headers are lines without their ends.
func (c *client) request(method, target, body string, headers ...string) {
	c.t.Helper()
	c.send(requestText(method, target, body, headers...))
}

func requestText(method, target, body string, headers ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nHost: localhost\r\n", method, target)
	for _, h := range headers {
		b.WriteString(h + "\r\n")
	}
	if body != "" {
		fmt.Fprintf(&b, "Content-Length: %d\r\n", len(body))
	}
	b.WriteString("\r\n" + body)
	return b.String()
}

// answer is a whole answer.
type answer struct {
	*http.Response
	text string
	json map[string]any
}

// read reads one answer.
func (c *client) read() answer {
	c.t.Helper()
	a, err := readAnswer(c.r)
	if err != nil {
		c.t.Fatal(err)
	}
	return a
}

func readAnswer(r *bufio.Reader) (answer, error) {
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		return answer{}, err
	}
	body, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if err != nil {
		return answer{}, err
	}
	a := answer{Response: resp, text: string(body)}
	if err := json.Unmarshal(body, &a.json); err != nil {
		return answer{}, fmt.Errorf("%w in %q", err, body)
	}
	return a, nil
}

// do makes a call and reads its answer.
func (c *client) do(method, target, body string, headers ...string) answer {
	c.t.Helper()
	c.request(method, target, body, headers...)
	a := c.read()
	if !c.undocumented {
		apitest.Check(c.t, method, template(target), a.StatusCode, a.Header, []byte(a.text))
	}
	return a
}

// template is the path of the OpenAPI document that a target belongs to.
func template(target string) string {
	path, _, _ := strings.Cut(target, "?")
	path = strings.TrimPrefix(path, "http://localhost")
	switch key, locks := strings.CutPrefix(path, locksPath); {
	case locks:
		_, rest, deeper := strings.Cut(key, "/")
		switch {
		case !deeper:
			return locksPath + "{key}"
		case slices.Contains([]string{"release", "stop", "waiters", "events"}, rest):
			return locksPath + "{key}/" + rest
		}
	case strings.HasPrefix(path, sessionsPath):
		return sessionsPath + "{id}"
	case slices.Contains([]string{"/", "/v1", "/v1/locks", "/v1/sessions", "/v1/stats", "/v1/waiters", "/healthz", "/readyz", "/metrics"}, path):
		return path
	}
	return apitest.AnyPath
}

// wantEnd expects the server to close the connection.
func (c *client) wantEnd() {
	c.t.Helper()
	if rest, err := io.ReadAll(c.r); err != nil || len(rest) > 0 {
		c.t.Fatalf("want the end of the connection, got %q, %v", rest, err)
	}
}

// want checks the status and, if not empty, the code of an answer.
func (a answer) want(t testing.TB, status int, code string) {
	t.Helper()
	got, _ := a.json["code"].(string)
	if a.StatusCode != status || got != code {
		t.Fatalf("got %d %q, want %d %q: %s", a.StatusCode, got, status, code, a.text)
	}
	wantType := "application/json"
	if status >= 400 {
		wantType = "application/problem+json"
		if a.json["type"] != wire.ProblemTypes+code || a.json["title"] == "" || a.json["detail"] == "" ||
			a.json["status"] != float64(status) {
			t.Fatalf("not a proper problem: %s", a.text)
		}
	}
	if got := a.Header.Get("Content-Type"); got != wantType {
		t.Fatalf("Content-Type is %q, want %q", got, wantType)
	}
}

// detail checks that a problem speaks of something.
func (a answer) detail(t testing.TB, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if got, _ := a.json["detail"].(string); !strings.Contains(got, part) {
			t.Errorf("detail %q does not contain %q", got, part)
		}
	}
}

// explicit opens an explicit session and returns its stream and id.
func (f *fixture) explicit() (*events, string) {
	f.t.Helper()
	c := f.dial()
	c.request("POST", "/v1/sessions", "")
	e := c.events()
	name, data := e.next()
	if name != "session" {
		f.t.Fatalf("first event is %q", name)
	}
	return e, data["session"].(string)
}

// events reads an event stream.
type events struct {
	*client
	body     *bufio.Reader
	comments int
}

func (c *client) events() *events {
	c.t.Helper()
	resp, err := http.ReadResponse(c.r, nil) //nolint:bodyclose // the connection is closed
	if err != nil {
		c.t.Fatal(err)
	}
	if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != "text/event-stream" {
		c.t.Fatalf("no event stream: %v", resp)
	}
	return &events{client: c, body: bufio.NewReader(resp.Body)}
}

// next returns the next event. At the proper end of the stream its name is "".
func (e *events) next() (name string, data map[string]any) {
	e.t.Helper()
	for {
		line, err := e.body.ReadString('\n')
		if err == io.EOF && line == "" {
			return "", nil
		}
		if err != nil {
			e.t.Fatal(err)
		}
		switch field, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": "); {
		case field == "event":
			name = value
		case field == "data":
			path, method := locksPath+"{key}/events", "GET"
			if name == "session" || name == "lost" || name == "stop" {
				path, method = "/v1/sessions", "POST"
			}
			apitest.CheckEvent(e.t, method, path, name, []byte(value))
			if err := json.Unmarshal([]byte(value), &data); err != nil {
				e.t.Fatal(err)
			}
		case field == "" && name != "":
			return name, data
		case strings.HasPrefix(field, ":"):
			e.comments++
		}
	}
}
