package proxy

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testing/await"
)

// The answers to any bytes are well-formed, and the connection closes.
func FuzzRequest(f *testing.F) {
	for _, seed := range []string{
		requestText("GET", "/v1", ""), requestText("PUT", "/v1/locks/a%2Fb", `{"wait_ms":1,"bind":"ttl"}`),
		requestText("PUT", "/v1/locks/a", `{"wait_ms":-1}`) + requestText("DELETE", "/v1/locks/a?token=1", ""),
		requestText("POST", "/v1/locks", `{"keys":["a","b"],"bind":"ttl"}`) + requestText("POST", "/v1/locks/a/stop", `{"reason":"x"}`),
		requestText("PUT", "/v1/locks/a", "") + requestText("POST", "/v1/locks/a/release", `{"token":1}`),
		requestText("GET", "/v1/locks/a/events", ""), requestText("DELETE", "/v1/locks/a?force=true", ""),
		requestText("PUT", "/v1/locks/a", `{"owner":"o","reentrant":true}`) + requestText("PUT", "/v1/locks/a", `{"owner":"o","reentrant":true}`) +
			requestText("DELETE", "/v1/locks/a?token=1&reentry=2&outcome=success", `{"result":[]}`),
		requestText("POST", "/v1/sessions", ""), requestText("GET", "/v1/locks?scope=all&limit=3", ""),
		requestText("PATCH", "/v1/locks/a", `{"token":1,"data":[]}`, "Lock-Session: x"), "GET / HTTP/1.0\r\n\r\n",
		"PUT /v1/locks/a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", "\r\n\r\n", "\x00\xff",
	} {
		f.Add([]byte(seed))
	}
	fx := start(f, func(c *Config) { c.Timeouts.Request, c.AllowForce = time.Second, true })
	f.Fuzz(func(t *testing.T, sent []byte) {
		nc, err := net.Dial("unix", fx.cfg.Socket)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = nc.Close() }()
		_ = nc.SetDeadline(time.Now().Add(await.Patience))
		_, _ = nc.Write(sent) // the server may close before it has all
		_ = nc.(*net.UnixConn).CloseWrite()
		got, err := io.ReadAll(nc)
		if ne := net.Error(nil); errors.As(err, &ne) && ne.Timeout() {
			t.Fatalf("no end after %q: %q", sent, got)
		}
		if bytes.Contains(sent, []byte("HEAD")) {
			return // their answers have no body, and which they are is not known here
		}
		checkAnswers(t, got)
	})
}

func checkAnswers(t *testing.T, got []byte) {
	t.Helper()
	r := bufio.NewReader(bytes.NewReader(got))
	for {
		if _, err := r.Peek(1); err != nil {
			return
		}
		resp, err := http.ReadResponse(r, nil) //nolint:bodyclose // a body of bytes in memory
		if err != nil {
			t.Fatalf("%v in %q", err, got)
		}
		if resp.StatusCode == http.StatusContinue {
			continue
		}
		body, err := io.ReadAll(resp.Body)
		if resp.Header.Get("Content-Type") == "text/event-stream" {
			return
		}
		if err != nil || !json.Valid(body) {
			t.Fatalf("%v in %q", err, got)
		}
		if problem := resp.Header.Get("Content-Type") == "application/problem+json"; problem != (resp.StatusCode >= 400) {
			t.Fatalf("%q", got)
		}
		if resp.StatusCode == http.StatusInternalServerError {
			t.Fatalf("an internal error: %q", got)
		}
	}
}
