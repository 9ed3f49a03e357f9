package proxy

import (
	"context"
	"log/slog"
	"os"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/internal/testing/await"
	"github.com/locksidecar/locksidecar/proxy/internal/conn"
	"github.com/locksidecar/locksidecar/store"
)

// lines are the lines of the log with this message.
func (l *logs) lines(message string) (found []string) {
	for line := range strings.Lines(l.text()) {
		if strings.Contains(line, "msg="+message) {
			found = append(found, line)
		}
	}
	return found
}

// wantLine waits for a line with this message since the last time, and expects one, with these parts. The line may be written just after the
// answer, or after the end of the connection.
func (f *fixture) wantLine(message string, parts ...string) {
	f.t.Helper()
	await.Until(f.t, "a line "+message, func() bool { return len(f.log.lines(message)) > 0 })
	found := f.log.lines(message)
	if len(found) != 1 {
		f.t.Errorf("%d lines %s: %q", len(found), message, f.log.text())
		return
	}
	for _, part := range parts {
		if !strings.Contains(found[0], part) {
			f.t.Errorf("%q does not tell %s", found[0], part)
		}
	}
	f.log.Forget()
}

func (f *fixture) wantNoLine() {
	f.t.Helper()
	if text := f.log.text(); strings.Contains(text, "refused") || strings.Contains(text, "bad request") {
		f.t.Error("logged:", text)
	}
}

const ofApp = "trace_id=" + appTrace

// A call that the proxy refuses has one line in the log, with its trace.
func TestRefusalsAreLogged(t *testing.T) {
	f := start(t, func(c *Config) { c.TCPAddr, c.Timeouts.StreamWrite = "127.0.0.1:0", await.Patience })
	addr := f.TCPAddr().String()
	web := dialTo(t, "tcp", addr)
	web.do("PUT", "/v1/locks/a", "", "Origin: http://evil.example", appHeader).want(t, 403, "forbidden")
	f.wantLine(`"call refused"`, ofApp, "level=WARN", "code=forbidden", "Origin", "origin=http://evil.example", "host=localhost",
		"path=/v1/locks/a", "method=PUT", "from="+web.LocalAddr().String())
	web.send("GET /v1 HTTP/1.1\r\nHost: evil.example\r\n\r\n")
	web.read().want(t, 403, "forbidden")
	f.wantLine(`"call refused"`, "host=evil.example", "Host is not")

	c := f.dial()
	c.do("DELETE", "/v1/locks/a?force=true", "", appHeader).want(t, 403, "forbidden")
	f.wantLine(`"call refused"`, ofApp, "LOCKSIDECAR_ALLOW_FORCE")
	f.fill()
	f.takeLongAnswers(longList)
	c.do("GET", longList, "", appHeader).want(t, 429, "limit")
	f.wantLine(`"call refused"`, ofApp, "code=limit", "too many long answers")

	// Package lease logs its own refusals. For an app's mistake, the app gets an answer, and nothing is logged.
	c.do("PUT", "/v1/locks/x", "").want(t, 200, "")
	for _, target := range []string{"/v1/locks/x?token=77", "/v1/locks/x", "/nothing"} {
		f.dial().do("DELETE", target, "", appHeader)
	}
	f.wantNoLine()
}

func TestRefusedConnectionsAreLogged(t *testing.T) {
	f := start(t, func(c *Config) { c.AllowedUIDs = []uint32{uint32(os.Getuid()) + 1} })
	c := f.dial()
	for range 3 { // one line for the connection, not for each call
		a := c.do("GET", "/v1", "")
		a.want(t, 403, "forbidden")
		c = f.dial()
	}
	await.Until(t, "all are counted", func() bool { return len(f.log.lines(`"connection refused"`)) == 4 })
	if text := f.log.text(); strings.Contains(text, "call refused") || !strings.Contains(text, "answered=true") {
		t.Error(text)
	}
	for range conn.MaxRefused + 3 { // those who are not even told
		f.dial()
	}
	await.Until(t, "they are logged too", func() bool { return strings.Contains(f.log.text(), "answered=false") })
}

// At debug, bad requests are there, but nothing of what is an app's own.
func TestBadRequestsAreLogged(t *testing.T) {
	f := start(t)
	debug := &slog.HandlerOptions{Level: slog.LevelDebug}
	f.Server.log = slog.New(slog.NewTextHandler(f.log, debug)) // nobody is connected yet
	c := f.dial()
	for _, tt := range []struct {
		method, target, body string
		parts                []string
	}{
		{"PUT", "/v1/locks/a:1", `{"data":"secret"`, []string{"code=invalid_request", "path=/v1/locks/a:1", "method=PUT"}},
		{"GET", "/nothing?secret", "", []string{"code=not_found", "path=/nothing"}},
		{"POST", "/v1/locks/a", "", []string{"code=method_not_allowed"}},
		{"GET", "/v1/sessions/secret-id", "", []string{"code=method_not_allowed", "path=/v1/sessions/{id}"}},
		{"PUT", "/v1/locks/a", `{"data":"` + strings.Repeat("secret", 1000) + `"}`, []string{"code=too_large"}},
	} {
		c.do(tt.method, tt.target, tt.body, appHeader)
		if strings.Contains(f.log.text(), "secret") {
			t.Error(f.log.text())
		}
		f.wantLine(`"bad request"`, append(tt.parts, "level=DEBUG", ofApp, "by.pid=")...)
	}
	c.send("GET nonsense\r\nLock-Session: nonsense\r\n\r\n")
	c.read().want(t, 400, "invalid_request")
	if text := f.log.text(); strings.Contains(text, "nonsense") {
		t.Error("it shows what was sent:", text)
	}
	if text := f.log.text(); strings.Contains(text, "trace_id") {
		t.Error("a trace of the request before:", text)
	}
	f.wantLine(`"bad request"`, "not well-formed")
}

// Lines about a call name its trace, also when they come late.
func TestLogLinesNameTrace(t *testing.T) {
	f := start(t, unwatched, func(c *Config) { c.Timeouts.Subscribe = await.Patience }) // a failure is a status
	f.leaveBeforeTheAnswer(appHeader)
	await.Receive(t, f.locks.handedBack, "the grant handed back")
	f.wantLine(`"grant handed back`, ofApp, "key=a")

	f.locks.hook = func(op, _ string) error {
		if op == "get" {
			panic("a bug")
		}
		return errPanic
	}
	f.dial().do("GET", "/v1/locks/a", "", appHeader).want(t, 500, "internal")
	f.wantLine(`"panic in a call"`, ofApp)
	f.dial().do("PUT", "/v1/locks/a", "", appHeader)
	f.wantLine(`"call failed"`, ofApp)
	f.dial().do("GET", "/v1/locks/a/events", "", appHeader).want(t, 500, "internal")
	f.wantLine(`"call failed"`, ofApp, "call=watch")
}

// With spans, it is the trace that they are part of.
func TestLogLinesNameSpanTrace(t *testing.T) {
	f, exporter := traced(t)
	f.locks.hook = func(string, string) error { return errPanic }
	f.locks.count = func(context.Context) (store.Stats, error) { return store.Stats{}, errPanic }
	c := f.dial()
	c.do("GET", "/v1/locks/a", "").want(t, 500, "internal")
	f.wantLine(`"call failed"`, "trace_id="+only(t, exporter).SpanContext.TraceID().String())
	c.do("GET", "/v1/stats", "").want(t, 500, "internal")
	if text := f.log.text(); strings.Contains(text, "trace_id") {
		t.Error("the trace of the call before:", text)
	}
	f.wantLine(`"call failed"`, "on=/v1/stats")
}
