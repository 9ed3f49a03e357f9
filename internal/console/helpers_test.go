package console

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/html"

	"github.com/locksidecar/locksidecar/internal/client"
	"github.com/locksidecar/locksidecar/internal/testing/sidecartest"
)

// served is a console under test.
type served struct {
	t      *testing.T
	url    string
	server *http.Server
	stop   func()
}

func serve(t *testing.T, socket string, change func(*Config)) *served {
	t.Helper()
	config := Config{Client: client.New(socket, "test"), AllowStop: true, AllowForce: true}
	if change != nil {
		change(&config)
	}
	ctx, cancel := context.WithCancel(context.Background())
	server, err := New(ctx, config)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = server.Serve(Limit(listener))
	}()
	stop := func() {
		cancel()
		_ = server.Shutdown(context.Background())
		<-ended
		http.DefaultClient.CloseIdleConnections()
	}
	t.Cleanup(stop)
	return &served{t, "http://" + listener.Addr().String(), server, stop}
}

// head is an answer without its body.
type head struct {
	StatusCode int
	Header     http.Header
	Close      bool
}

// ask makes a request with headers, in pairs. It follows no redirection.
func (s *served) ask(method, path, form string, headers ...string) (head, string) {
	s.t.Helper()
	req, err := http.NewRequest(method, s.url+path, strings.NewReader(form))
	if err != nil {
		s.t.Fatal(err)
	}
	if form != "" {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
		if headers[i] == "Host" {
			req.Host = headers[i+1]
		}
	}
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return head{resp.StatusCode, resp.Header, resp.Close}, string(text)
}

func (s *served) page(status int, path string) *html.Node {
	s.t.Helper()
	resp, text := s.ask("GET", path, "")
	if resp.StatusCode != status {
		s.t.Fatalf("%s: %d %s, want %d", path, resp.StatusCode, text, status)
	}
	return parse(s.t, text)
}

// live opens a stream. next waits for an event and returns its data.
func (s *served) live(path string) (next func() string, leave func()) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	req, _ := http.NewRequestWithContext(ctx, http.MethodGet, s.url+path, http.NoBody)
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil || resp.StatusCode != 200 {
		s.t.Fatalf("%s: %v, %v", path, resp, err)
	}
	lines := bufio.NewReader(resp.Body)
	leave = func() { cancel(); _ = resp.Body.Close() }
	s.t.Cleanup(leave)
	return func() string {
		s.t.Helper()
		var data strings.Builder
		for {
			line, err := lines.ReadString('\n')
			switch text, ok := strings.CutPrefix(line, "data: "); {
			case err != nil:
				s.t.Fatalf("%s: %v", path, err)
			case ok:
				data.WriteString(text)
			case line == "\n" && data.Len() > 0:
				return data.String()
			case line != "\n" && line != ":\n":
				s.t.Fatalf("%s: a line of the stream is %q", path, line)
			}
		}
	}, leave
}

// awaitLive reads events until one contains a text, and returns it.
func awaitLive(next func() string, text string) string {
	for {
		if data := next(); strings.Contains(data, text) {
			return data
		}
	}
}

func parse(t *testing.T, text string) *html.Node {
	t.Helper()
	doc, err := html.Parse(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return doc
}

// all returns the elements with a name, and perhaps an attribute with a value.
func all(n *html.Node, name string, with ...string) (found []*html.Node) {
	for d := range n.Descendants() {
		if d.Type == html.ElementNode && d.Data == name && (len(with) == 0 || attr(d, with[0]) == with[1]) {
			found = append(found, d)
		}
	}
	return found
}

func attr(n *html.Node, name string) string {
	for _, a := range n.Attr {
		if a.Key == name {
			return a.Val
		}
	}
	return ""
}

func textOf(n *html.Node) string {
	var text strings.Builder
	for d := range n.Descendants() {
		if d.Type == html.TextNode {
			text.WriteString(d.Data)
		}
	}
	return text.String()
}

// fake is a sidecar with made-up locks, which answers page by page.
type fake struct {
	locks   []client.Lock
	waiters []client.Waiter
	// namespace is the sidecar's. That of the counts is <i>n.
	namespace string
	features  []string
	asked     sync.Map     // paths with their queries
	lists     atomic.Int64 // how often the first page of locks was read
	queues    atomic.Int64 // how often waiting calls were read
	// watching is the number of streams of events.
	watching atomic.Int64
}

func (f *fake) start(t *testing.T) (socket string) {
	t.Helper()
	socket = sidecartest.Socket(t)
	f.serveAt(t, socket)
	return socket
}

func (f *fake) serveAt(t *testing.T, socket string) (stop func()) {
	t.Helper()
	return serveHandler(t, socket, f)
}

func serveOn(t *testing.T, h http.Handler) (socket string) {
	t.Helper()
	socket = sidecartest.Socket(t)
	serveHandler(t, socket, h)
	return socket
}

func serveHandler(t *testing.T, socket string, h http.Handler) (stop func()) {
	t.Helper()
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(h)
	_ = server.Listener.Close()
	server.Listener = listener
	server.Start()
	stop = func() {
		server.CloseClientConnections()
		server.Close()
	}
	t.Cleanup(stop)
	return stop
}

func (f *fake) awaitWatching(t *testing.T, streams int64) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); f.watching.Load() != streams; time.Sleep(time.Millisecond) { // the pause of a poll
		if time.Now().After(end) {
			t.Fatalf("%d keys are watched, want %d", f.watching.Load(), streams)
		}
	}
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path, _ := url.PathUnescape(strings.TrimPrefix(r.URL.EscapedPath(), "/v1/"))
	f.asked.Store(r.URL.RequestURI(), true)
	switch {
	case path == "locks":
		if r.URL.Query().Get("cursor") == "" {
			f.lists.Add(1)
		}
		answer(w, r, "locks", f.locks)
	case strings.HasSuffix(path, "/events"):
		f.watching.Add(1)
		defer f.watching.Add(-1)
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, "event: state\ndata: {}\n\n")
		for _, l := range f.locks[:min(1, len(f.locks))] {
			data, _ := json.Marshal(map[string]any{"token": 7, "holder": l.Holder, "reason": l.Key, "result": l.Key})
			fmt.Fprintf(w, "event: <b>acquired\ndata: %s\n\n", data)
		}
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	case strings.HasSuffix(path, "waiters"):
		f.queues.Add(1)
		answer(w, r, "waiters", f.waiters)
	case r.URL.Path == "/v1":
		_ = json.NewEncoder(w).Encode(map[string]any{"namespace": f.namespace, "features": f.features})
	case path == "stats":
		_ = json.NewEncoder(w).Encode(map[string]any{"held": 1, "types": []map[string]any{{"namespace": "<i>n", "type": "<i>t", "held": 1}}, "pods": []map[string]any{{"namespace": "<i>n", "pod": "<i>p"}}})
	default:
		for _, l := range f.locks {
			if path == "locks/"+l.Key {
				_ = json.NewEncoder(w).Encode(l)
				return
			}
		}
		w.WriteHeader(http.StatusNotFound)
	}
}

// pages are the encoded pages of long lists: the race detector makes this slow.
var pages sync.Map

func answer[T any](w http.ResponseWriter, r *http.Request, name string, items []T) {
	limit, _ := strconv.Atoi(r.URL.Query().Get("limit"))
	from, _ := strconv.Atoi(r.URL.Query().Get("cursor"))
	to := min(from+limit, len(items))
	id := fmt.Sprintf("%p %d %d", items, from, to)
	encoded, known := pages.Load(id)
	if !known {
		page := map[string]any{name: items[from:to]}
		if to < len(items) {
			page["next_cursor"] = strconv.Itoa(to)
		}
		encoded, _ = json.Marshal(page)
		if len(items) >= limit {
			pages.Store(id, encoded)
		}
	}
	_, _ = w.Write(encoded.([]byte))
}

func heldLock(key, pod, session string, held int64) client.Lock {
	return client.Lock{
		Key: key, Type: strings.Split(key, ":")[0], State: "held", LockMode: client.LockMode{Mode: "exclusive", HoldersCount: 1},
		Holder: &client.Holder{Pod: pod, Session: &session, HeldMS: held, AcquiredAt: time.Unix(1, 0), Data: json.RawMessage(`"d"`)},
	}
}
