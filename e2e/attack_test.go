package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"unicode"

	"github.com/locksidecar/locksidecar/internal/testing/wire"
)

// listening returns the TCP address of a sidecar from its log, or "".
func (s *sidecar) listening() (tcp, admin string) {
	s.t.Helper()
	var line struct {
		TCP   string `json:"tcp"`
		Admin string `json:"admin"`
	}
	s.await("the log line with the TCP address", func() bool { return len(s.logged(`"msg":"serving"`)) == 1 })
	if err := json.Unmarshal([]byte(s.logged(`"msg":"serving"`)[0]), &line); err != nil {
		s.t.Fatal(err)
	}
	return line.TCP, line.Admin
}

// dialTCP is dial for a TCP address.
func dialTCP(t *testing.T, addr string) *app {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	a := &app{t: t, Conn: wire.New(c)}
	t.Cleanup(a.close)
	return a
}

// raw sends bytes and reads the answer to the first request.
func (a *app) raw(text string) answer {
	a.t.Helper()
	if _, err := io.WriteString(a, text); err != nil {
		a.t.Fatal(err)
	}
	return a.read("PUT", "/v1/locks/k")
}

// none checks that the sidecar lists no locks.
func (s *sidecar) none() {
	s.t.Helper()
	if list := dial(s.t, s.socket).call("GET", "/v1/locks?scope=all", ""); len(list.json["locks"].([]any)) != 0 {
		s.t.Errorf("locks are held: %s", list.body)
	}
}

// TestWebPages: a web page can make a browser send requests to the TCP listener. It cannot acquire
// locks or read about them. The admin listener has no locks.
// Proves: threat web page, threat admin listener
func TestWebPages(t *testing.T) {
	t.Parallel()
	s := start(t, options{"STORE_URL": "memory://", "TCP_ADDR": "127.0.0.1:0", "ADMIN_ADDR": "127.0.0.1:0", "ALLOW_FORCE": "true"})
	tcp, admin := s.listening()
	_, port, _ := net.SplitHostPort(tcp)
	const page = "Origin: http://evil.example\r\n"
	lock := `{"bind":"ttl","ttl_ms":60000}`
	send := func(method, target, host, headers, body string) string {
		return fmt.Sprintf("%s %s HTTP/1.1\r\nHost: %s\r\n%sContent-Length: %d\r\n\r\n%s", method, target, host, headers, len(body), body)
	}
	for name, request := range map[string]string{
		"DNS rebinding":               send("PUT", "/v1/locks/k", "evil.example:"+port, "", lock),
		"rebinding, name in front":    send("PUT", "/v1/locks/k", "127.0.0.1.evil.example", "", lock),
		"rebinding, dot behind":       send("PUT", "/v1/locks/k", "localhost.", "", lock),
		"rebinding, in the target":    send("PUT", "http://evil.example/v1/locks/k", tcp, "", lock),
		"no host":                     send("PUT", "/v1/locks/k", "", "", lock),
		"simple request":              send("POST", "/v1/locks", tcp, page+"Content-Type: text/plain\r\n", `{"keys":["k"],"bind":"ttl"}`),
		"form":                        send("POST", "/v1/locks", tcp, page+"Content-Type: application/x-www-form-urlencoded\r\n", `{"keys":["k"],"bind":"ttl"}`),
		"sandboxed frame":             send("POST", "/v1/locks", tcp, "Origin: null\r\n", `{"keys":["k"],"bind":"ttl"}`),
		"page of another port":        send("POST", "/v1/locks", tcp, "Origin: http://127.0.0.1:3000\r\n", `{"keys":["k"],"bind":"ttl"}`),
		"page over TLS":               send("PUT", "/v1/locks/k", tcp, "Origin: https://"+tcp+"\r\n", lock),
		"two origins":                 send("PUT", "/v1/locks/k", tcp, "Origin: http://"+tcp+"\r\n"+page, lock),
		"preflight":                   send("OPTIONS", "/v1/locks/k", tcp, page+"Access-Control-Request-Method: PUT\r\nAccess-Control-Request-Private-Network: true\r\n", ""),
		"image":                       send("GET", "/v1/locks?scope=all", tcp, "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: no-cors\r\n", ""),
		"script of another port":      send("GET", "/v1/stats", tcp, "Sec-Fetch-Site: same-site\r\n", ""),
		"stream":                      send("GET", "/v1/locks/k/events", tcp, page+"Accept: text/event-stream\r\n", ""),
		"session":                     send("POST", "/v1/sessions", tcp, page, ""),
		"web socket":                  send("GET", "/v1", tcp, page+"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n", ""),
		"figures":                     send("GET", "/metrics", tcp, page, ""),
		"a break by a simple request": send("POST", "/v1/locks/k?force=true", tcp, page, ""),
	} {
		ans := dialTCP(t, tcp).raw(request)
		if ans.status != 403 && ans.status != 400 {
			t.Errorf("%s: %d %s", name, ans.status, ans.body)
		}
		for header := range ans.header {
			if strings.HasPrefix(header, "Access-Control-") {
				t.Errorf("%s: a page may read the answer: %s", name, header)
			}
		}
	}
	for _, method := range []string{"GET", "PUT", "POST", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT"} {
		for _, path := range []string{"/", "/v1", "/v1/locks", "/v1/locks/k", "/v1/locks/k?force=true", "/v1/sessions", "/v1/stats", "/v1/locks/k/stop", "/debug/pprof/", "*"} {
			if ans := dialTCP(t, admin).raw(send(method, path, tcp, "", "")); ans.status < 400 || ans.status > 405 {
				t.Errorf("%s %s on the admin listener: %d %s", method, path, ans.status, ans.body)
			}
		}
	}
	s.none()
	// A client that is not a web page is served.
	dialTCP(t, tcp).call("PUT", lockPath("k"), lock, "X-From: curl").want(403, "forbidden") // Host: sidecar
	if ans := dialTCP(t, tcp).raw(send("PUT", "/v1/locks/k", tcp, "", lock)); ans.status != 200 {
		t.Errorf("a program of this machine: %d %s", ans.status, ans.body)
	}
}

// TestSmuggledRequests: two servers could find different ends of a request. The sidecar refuses
// such a request, and does not read the bytes behind as a request.
// Proves: threat malformed request
func TestSmuggledRequests(t *testing.T) {
	t.Parallel()
	s := start(t, options{"STORE_URL": "memory://"})
	lock := `{"bind":"ttl","ttl_ms":60000}`
	hidden := fmt.Sprintf("PUT /v1/locks/hidden HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(lock), lock)
	for _, head := range []string{
		"Content-Length: 5\r\nTransfer-Encoding: chunked", "Transfer-Encoding: chunked\r\nContent-Length: 5",
		"Content-Length: 5\r\nContent-Length: 5", "Content-Length: 5\r\nContent-Length: 0", "Content-Length: 5, 5", "Content-Length: 5 5",
		"Content-Length: +5", "Content-Length: -5", "Content-Length: 0x5", "Content-Length: 5.0", "Content-Length: \x0b5", "Content-Length:",
		"Content-Length: 99999999999999999999", "Content-Length : 5", " Content-Length: 5", "Content-Length\t: 5", "Content-Length\x00: 5",
		"Transfer-Encoding: xchunked", "Transfer-Encoding: chunked, identity", "Transfer-Encoding: identity, chunked",
		"Transfer-Encoding : chunked", "Transfer-Encoding: \x0bchunked", "Transfer-Encoding:\r\n chunked", "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
		"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity", "Transfer-Encoding: \"chunked\"", "Transfer-Encoding: chunked;q=1",
		"X: y\rTransfer-Encoding: chunked", "X: y\x00\r\nContent-Length: 5", "X\r\nContent-Length: 5", ": y\r\nContent-Length: 5",
		"Trailer: Content-Length\r\nTransfer-Encoding: chunked", "Host: y\r\nContent-Length: 5",
		"Content-Length: 5\nTransfer-Encoding: chunked", "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\n", "X: y\r\n Content-Length: 5",
	} {
		a := dial(t, s.socket)
		ans := a.raw("PUT /v1/locks/outer HTTP/1.1\r\nHost: x\r\n" + head + "\r\n\r\n0\r\n\r\n" + hidden)
		if ans.status != 400 && ans.status != 413 {
			t.Errorf("%q: %d %s", head, ans.status, ans.body)
		}
		if next, err := a.tryRead("PUT", "/v1/locks/hidden"); err == nil {
			t.Errorf("%q: the connection continues: %s", head, next.body)
		}
	}
	for _, chunks := range []string{
		"-1\r\n", "+0\r\n\r\n", "0x0\r\n\r\n", "ffffffffffffffff0\r\n\r\n", "80000000\r\n", "1\r\n{}\r\n0\r\n\r\n", "2;\n\r\n{}\r\n0\r\n\r\n", "2 ;x\r\n{}\r\n0\r\n\r\n",
		"2\n{}\r\n0\r\n\r\n", "2\r\n{}0\r\n\r\n", "\r\n2\r\n{}\r\n0\r\n\r\n", "2\r\r\n{}\r\n0\r\n\r\n",
	} {
		a := dial(t, s.socket)
		if ans := a.raw("PUT /v1/locks/outer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + hidden); ans.status != 400 && ans.status != 413 {
			t.Errorf("%q: %d %s", chunks, ans.status, ans.body)
		}
	}
	s.none()
}

// TestLinesOfTheLog: input from outside does not begin a log line of its own, in either format. It
// contains no control characters for terminals.
// Proves: threat control characters
func TestLinesOfTheLog(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"text", "json"} {
		t.Run(format, func(t *testing.T) {
			s := start(t, options{"STORE_URL": "memory://", "TCP_ADDR": "127.0.0.1:0", "ALLOW_FORCE": "true", "LOG_FORMAT": format})
			const odd = "\u2028level=ERROR msg=\"forged\" \u202e\\n\\u000a\u00a0"
			quoted, _ := json.Marshal(odd)
			key := lockPath("job:" + odd)
			session := openSession(t, s.socket, `{"name":`+string(quoted)+`}`)
			a := dial(t, s.socket)
			a.call("PUT", key, `{"owner":`+string(quoted)+`}`, session.joins()).granted()
			a.call("POST", key+"/stop", `{"reason":`+string(quoted)+`}`).want(202, "")
			a.call("DELETE", key+"?token=77", "").want(409, "not_holder")
			a.call("DELETE", key+"?force=true", "").want(200, "")
			a.call("GET", "/nothing/"+odd+"\x7f?"+odd, "")
			for _, request := range []string{
				"\x1b[2J\x1b]0;x\x07 /v1 HTTP/1.1\r\nHost: x\r\n\r\n", "GET /v1/\x1b[2J HTTP/1.1\r\nHost: x\r\n\r\n",
				"GET /v1/%0a%1b[2J HTTP/1.1\r\nHost: x\r\n\r\n", "GET /v1 HTTP/1.1\r\nHost: x\r\nX: \x1b[2J\r\n\r\n", "\x00\x9b2J\u0085\r\n\r\n",
			} {
				dial(t, s.socket).raw(request)
			}
			wrong := dial(t, s.socket)
			wrong.acquire("dropped", "")
			wrong.close()
			s.await("the line about the drop", func() bool { return len(s.logged("connection closed while it held locks")) > 0 })
			s.stop()
			for line := range strings.Lines(s.log.String()) {
				line = strings.TrimSuffix(line, "\n")
				var fields map[string]any
				if format == "json" && json.Unmarshal([]byte(line), &fields) != nil || format == "text" && !strings.HasPrefix(line, "time=") {
					t.Errorf("not a line of the log: %q", line)
				}
				if strings.ContainsFunc(line, func(r rune) bool { return unicode.IsControl(r) || r == '\u2028' }) {
					t.Errorf("the line has control characters: %q", line)
				}
			}
		})
	}
}

// TestReaderOfTheLogHasEnded: the sidecar continues after the end of the process that reads its log.
// Proves: threat log reader
func TestReaderOfTheLogHasEnded(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(folder(t), "s.sock")
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(binary, "serve")
	cmd.Env = append(cleanEnv(), "LOCKSIDECAR_SOCKET="+socket)
	cmd.Stderr = write
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill() }()
	_ = write.Close()
	lines := bufio.NewScanner(read)
	for ready := false; !ready && lines.Scan(); {
		ready = strings.Contains(lines.Text(), `"msg":"ready"`)
	}
	_ = read.Close()
	kept := dial(t, socket)
	token := kept.acquire("kept", "")
	for range 3 { // each causes a log line
		dropped := dial(t, socket)
		dropped.acquire("dropped", "")
		dropped.close()
		eventually(t, "the end of the dropped lock", func() bool { return kept.call("GET", lockPath("dropped"), "").str("state") == "free" })
	}
	kept.release("kept", token)
	kept.close()
	_ = cmd.Process.Signal(syscall.SIGTERM)
	if err := cmd.Wait(); err != nil {
		t.Errorf("the sidecar ended with %v", err)
	}
}

// TestOtherApps: an app cannot harm the locks of another app behind the same socket. Tokens come
// from the clock, so knowing a token must not be enough.
// Proves: A5, threat other app
func TestOtherApps(t *testing.T) {
	t.Parallel()
	stores(t, func(t *testing.T, o options) {
		s := start(t, o)
		session := openSession(t, s.socket, `{"name":"workers"}`)
		mine := dial(t, s.socket)
		shared := mine.acquire("shared", "", session.joins())
		own := mine.acquire("own", `{"owner":"me","reentrant":true}`)
		other := dial(t, s.socket)
		for key, token := range map[string]int64{"shared": shared, "own": own} {
			path := fmt.Sprintf("%s?token=%d", lockPath(key), token)
			view := other.call("GET", lockPath(key), "")
			if view.json["mine"] != false || view.json["token"] != nil || strings.Contains(string(view.body), session.id) {
				t.Errorf("shown: %s", view.body)
			}
			public, _ := view.json["holder"].(map[string]any)["session"].(string)
			other.call("DELETE", path, "").want(409, "not_holder")
			other.call("DELETE", path, "", "Lock-Session: "+public).want(410, "session_ended")
			other.call("PATCH", lockPath(key), fmt.Sprintf(`{"token":%d,"data":1}`, token)).want(409, "not_holder")
			other.call("PUT", lockPath(key), `{"owner":"me","reentrant":true}`).want(423, "held")
			other.call("DELETE", lockPath(key)+"?force=true", "").want(403, "forbidden")
			other.call("DELETE", "/v1/sessions/"+public, "").want(410, "session_ended")
		}
		// Every app may ask a holder to stop, and may release a bind:ttl lock by its token.
		other.call("POST", stopPath("shared"), "").want(202, "")
		session.want("stop")
		other.release("cron", mine.acquire("cron", `{"bind":"ttl","ttl_ms":60000}`))
		mine.release("shared", shared, session.joins())
		mine.release("own", own)
	})
}
