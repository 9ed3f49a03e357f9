package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testing/apitest"
	"github.com/locksidecar/locksidecar/internal/testing/wire"
)

// app is one connection to a sidecar, like that of a client library.
type app struct {
	t testing.TB
	*wire.Conn
}

// answer is the answer of a sidecar.
type answer struct {
	t      testing.TB
	status int
	header http.Header
	body   []byte
	json   map[string]any
}

func dial(t testing.TB, socket string) *app {
	t.Helper()
	a, err := tryDial(t, socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.close)
	return a
}

func tryDial(t testing.TB, socket string) (*app, error) {
	c, err := wire.Dial(socket)
	if err != nil {
		return nil, err
	}
	return &app{t: t, Conn: c}, nil
}

func (a *app) close() { _ = a.Close() }

// send writes a request without waiting for the answer. headers are lines.
func (a *app) send(method, path, body string, headers ...string) {
	a.t.Helper()
	if err := a.Send(method, path, body, headers...); err != nil {
		a.t.Fatalf("%s %s: %v", method, path, err)
	}
}

// read reads the next answer.
func (a *app) read(method, path string) answer {
	a.t.Helper()
	ans, err := a.tryRead(method, path)
	if err != nil {
		a.t.Fatalf("%s %s: %v", method, path, err)
	}
	return ans
}

func (a *app) tryRead(method, path string) (answer, error) {
	a.t.Helper()
	_ = a.SetReadDeadline(time.Now().Add(patience))
	res, err := a.Receive(method)
	if err != nil {
		return answer{}, err
	}
	ans := answer{t: a.t, status: res.Status, header: res.Header, body: res.Body}
	dec := json.NewDecoder(bytes.NewReader(res.Body))
	dec.UseNumber()
	_ = dec.Decode(&ans.json)
	checkContract(a.t, method, path, ans)
	return ans, nil
}

// call sends a request and reads its answer.
func (a *app) call(method, path, body string, headers ...string) answer {
	a.t.Helper()
	a.send(method, path, body, headers...)
	return a.read(method, path)
}

func lockPath(key string) string { return "/v1/locks/" + url.PathEscape(key) }

// acquire acquires a lock that must be available, and returns its token.
func (a *app) acquire(key, body string, headers ...string) int64 {
	a.t.Helper()
	return a.call("PUT", lockPath(key), body, headers...).granted()
}

// release releases a lock that must be held.
func (a *app) release(key string, token int64, headers ...string) {
	a.t.Helper()
	a.call("DELETE", fmt.Sprintf("%s?token=%d", lockPath(key), token), "", headers...).want(200, "")
}

// releaseWith releases a lock with further query parameters and a body.
func (a *app) releaseWith(key string, token int64, query, body string, headers ...string) answer {
	a.t.Helper()
	return a.call("DELETE", fmt.Sprintf("%s?token=%d%s", lockPath(key), token, query), body, headers...).want(200, "")
}

// want checks the status and, for errors, the code.
func (ans answer) want(status int, code string) answer {
	ans.t.Helper()
	got, _ := ans.json["code"].(string)
	if ans.status != status || got != code {
		ans.t.Fatalf("got %d %s, want %d %s: %s", ans.status, got, status, code, ans.body)
	}
	return ans
}

// granted checks that the answer is a grant and returns its token.
func (ans answer) granted() int64 {
	ans.t.Helper()
	ans.want(200, "")
	if ans.json["granted"] != true {
		ans.t.Fatalf("not granted: %s", ans.body)
	}
	return ans.int("token")
}

func (ans answer) int(field string) int64 {
	ans.t.Helper()
	n, ok := ans.json[field].(json.Number)
	if !ok {
		ans.t.Fatalf("no number %q in %s", field, ans.body)
	}
	i, err := n.Int64()
	if err != nil {
		ans.t.Fatalf("%q in %s: %v", field, ans.body, err)
	}
	return i
}

func (ans answer) str(field string) string {
	ans.t.Helper()
	s, ok := ans.json[field].(string)
	if !ok {
		ans.t.Fatalf("no string %q in %s", field, ans.body)
	}
	return s
}

// event is one server-sent event.
type event struct {
	name string
	data map[string]any
	raw  []byte
}

// stream is an event stream: of an explicit session, or of a key.
type stream struct {
	*app
	method, template string     // the call that opened it, as in the OpenAPI document
	id               string     // the session's id
	events           chan event // closed when the stream ends
}

// openSession opens an explicit session and reads its first event.
func openSession(t testing.TB, socket, body string) *stream {
	t.Helper()
	s := openStream(t, socket, "POST", "/v1/sessions", body)
	s.id, _ = s.want("session").data["session"].(string)
	return s
}

// watchKey opens the event stream of a key. Its first event is the state of the key.
func watchKey(t testing.TB, socket, key string) (s *stream, state event) {
	t.Helper()
	s = openStream(t, socket, "GET", lockPath(key)+"/events", "")
	state = s.want("state")
	return s, state
}

func openStream(t testing.TB, socket, method, path, body string) *stream {
	t.Helper()
	s, status := tryStream(t, socket, method, path, body)
	if status != 200 {
		t.Fatalf("%s %s: %d", method, path, status)
	}
	return s
}

// tryStream opens an event stream. If the status is not 200, it returns the status.
func tryStream(t testing.TB, socket, method, path, body string) (*stream, int) {
	t.Helper()
	s := &stream{app: dial(t, socket), method: method, template: template(path), events: make(chan event, 10_000)}
	s.send(method, path, body)
	_ = s.SetReadDeadline(time.Now().Add(patience))
	res, err := http.ReadResponse(s.In, nil) //nolint:bodyclose // closing would wait for the end of the stream
	if err != nil {
		t.Fatal(err)
	}
	if res.StatusCode != 200 {
		s.close()
		return nil, res.StatusCode
	}
	if got := res.Header.Get("Content-Type"); got != "text/event-stream" {
		t.Fatalf("%s %s: %s", method, path, got)
	}
	_ = s.SetReadDeadline(time.Time{})
	go s.readEvents(res.Body)
	return s, 200
}

func (s *stream) readEvents(body io.Reader) {
	defer close(s.events)
	lines := bufio.NewScanner(body)
	var e event
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), ": ")
		switch name {
		case "event":
			e.name = value
		case "data":
			dec := json.NewDecoder(strings.NewReader(value))
			dec.UseNumber()
			_ = dec.Decode(&e.data)
			e.raw = []byte(value)
		case "":
			if e.name != "" {
				apitest.CheckEvent(s.t, s.method, s.template, e.name, e.raw)
				s.events <- e
			}
			e = event{}
		}
	}
}

// next returns the next event.
func (s *stream) next() event {
	s.t.Helper()
	select {
	case e, ok := <-s.events:
		if !ok {
			s.t.Fatal("the event stream ended")
		}
		return e
	case <-time.After(patience):
		s.t.Fatalf("no event in %s", patience)
	}
	return event{}
}

// want returns the next event, which must have this name.
func (s *stream) want(name string) event {
	s.t.Helper()
	e := s.next()
	if e.name != name {
		s.t.Fatalf("the next event is %q %s, want %q", e.name, e.raw, name)
	}
	return e
}

// joins returns the header by which a call joins the session.
func (s *stream) joins() string { return "Lock-Session: " + s.id }

// appEnv makes a process of this test binary an app. Its value is the socket and the keys,
// separated by blanks. The app acquires the keys, reports that, and stays.
const appEnv = "LOCKSIDECAR_E2E_APP"

func runApp() {
	t := &plainTB{}
	words := strings.Fields(os.Getenv(appEnv))
	a, err := tryDial(t, words[0])
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range words[1:] {
		a.acquire(key, "")
	}
	fmt.Println("holding")
	_, _ = io.Copy(io.Discard, os.Stdin) // until the test ends this process
	runtime.KeepAlive(a)                 // a connection that nobody refers to is closed, and its session ends
}

// plainTB lets an app process use the tests' helpers.
type plainTB struct{ testing.TB }

func (*plainTB) Helper() {}

func (*plainTB) Fatal(args ...any) {
	fmt.Println(args...)
	os.Exit(1)
}

func (*plainTB) Fatalf(format string, args ...any) {
	fmt.Printf(format+"\n", args...)
	os.Exit(1)
}
