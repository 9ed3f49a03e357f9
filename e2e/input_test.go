package e2e

import (
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestBadInput: invalid requests get a clear error. The memory stays bounded, and locks of other
// clients are not affected.
// Proves: threat flood
func TestBadInput(t *testing.T) {
	t.Parallel()
	s := start(t, options{"MAX_BODY": "16KiB"})
	holder := dial(t, s.socket)
	token := holder.acquire("safe", "")

	t.Run("clear errors", func(t *testing.T) {
		a := dial(t, s.socket)
		for _, c := range []struct {
			method, path, body string
			status             int
			code, detail       string
		}{
			{"PUT", "/v1/locks/k", `{"wait_ms":"1"}`, 400, "invalid_request", "wait_ms"},
			{"PUT", "/v1/locks/k", `{"wait_ms":-2}`, 400, "invalid_request", "wait_ms"},
			{"PUT", "/v1/locks/k", `{"wait_ms":86400001}`, 400, "invalid_request", "wait_ms"},
			{"PUT", "/v1/locks/k", `{"wait_ms":99999999999999999999}`, 400, "invalid_request", "wait_ms"},
			{"PUT", "/v1/locks/k", `{"ttl_ms":499}`, 400, "invalid_request", "ttl_ms"},
			{"PUT", "/v1/locks/k", `{"ttl_ms":1.5}`, 400, "invalid_request", "ttl_ms"},
			{"PUT", "/v1/locks/k", `{"bind":"for ever"}`, 400, "invalid_request", "bind"},
			{"PUT", "/v1/locks/k", `{"request_id":"4711"}`, 400, "invalid_request", "request_id"},
			{"PUT", "/v1/locks/k", `{"unheard_of":1}`, 400, "invalid_request", "unheard_of"},
			{"PUT", "/v1/locks/k", `{} {}`, 400, "invalid_request", ""},
			{"PUT", "/v1/locks/k", `[]`, 400, "invalid_request", ""},
			{"PUT", "/v1/locks/k", `{"data":` + strconv.Quote(strings.Repeat("x", 5000)) + `}`, 413, "too_large", "data"},
			{"PUT", "/v1/locks/%00", "", 400, "invalid_request", "control"},
			{"PUT", "/v1/locks/%zz", "", 400, "invalid_request", ""},
			{"PUT", "/v1/locks/%ff", "", 400, "invalid_request", "UTF-8"},
			{"PUT", "/v1/locks/" + strings.Repeat("k", 513), "", 400, "invalid_request", "512"},
			{"PUT", "/v1/locks/a/b", "", 404, "not_found", "%2F"},
			{"DELETE", "/v1/locks/safe", "", 400, "invalid_request", "token"},
			{"DELETE", "/v1/locks/safe?token=x", "", 400, "invalid_request", "token"},
			{"DELETE", fmt.Sprintf("/v1/locks/safe?token=%d", token), "", 409, "not_holder", ""},
			{"DELETE", fmt.Sprintf("/v1/locks/safe?token=%d", token+1), "", 409, "not_holder", ""},
			{"GET", "/v1/locks?limit=0", "", 400, "invalid_request", "limit"},
			{"GET", "/v1/locks?scope=galaxy", "", 400, "invalid_request", "scope"},
			{"POST", "/v1/locks/k", "", 405, "method_not_allowed", ""},
			{"GET", "/v2", "", 404, "not_found", ""},
		} {
			ans := a.call(c.method, c.path, c.body).want(c.status, c.code)
			if !strings.Contains(ans.str("detail"), c.detail) {
				t.Errorf("%s %s %s: detail %q does not name %q", c.method, c.path, c.body, ans.str("detail"), c.detail)
			}
		}
	})

	t.Run("odd keys are valid keys", func(t *testing.T) {
		a := dial(t, s.socket)
		for _, path := range []string{"..", ".", "a%2Fstop", "%2e%2e", "a%20b", "%F0%9F%94%92", "a+b", "a%3Fb"} {
			ans := a.call("PUT", "/v1/locks/"+path, "")
			a.call("DELETE", fmt.Sprintf("/v1/locks/%s?token=%d", path, ans.granted()), "").want(200, "")
		}
	})

	t.Run("floods", func(t *testing.T) {
		before := s.rss()
		for range 20 {
			flood(t, s.socket, "PUT /v1/locks/k HTTP/1.1\r\nHost: x\r\n", "X-Flood: "+strings.Repeat("f", 1000)+"\r\n", 1000, 431)
			flood(t, s.socket, fmt.Sprintf("PUT /v1/locks/k HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", 1<<20), strings.Repeat(" ", 1024), 1024, 413)
			flood(t, s.socket, "", "\x00\xff\x13 nothing like HTTP \r\n", 1, 400)
		}
		if grown := s.rss() - before; grown > 64<<20 {
			t.Errorf("the sidecar's memory grew by %d MiB", grown>>20)
		}
	})

	if view := holder.call("GET", lockPath("safe"), ""); view.json["mine"] != true {
		t.Errorf("after all requests: %s", view.body)
	}
	holder.release("safe", token)
}

// flood writes a head and then a part many times. The sidecar must answer with this status or close
// the connection.
func flood(t *testing.T, socket, head, part string, times, status int) {
	t.Helper()
	c, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(patience))
	written := make(chan struct{})
	go func() {
		defer close(written)
		_, _ = io.WriteString(c, head)
		for range times {
			if _, err := io.WriteString(c, part); err != nil {
				return
			}
		}
	}()
	answer := make([]byte, 12)
	_, err = io.ReadFull(c, answer)
	_ = c.SetDeadline(time.Now())
	<-written
	if want := fmt.Sprintf("HTTP/1.1 %d", status); err == nil && string(answer) != want {
		t.Errorf("answer %q, want %q", answer, want)
	}
}

// rss returns the resident memory of the sidecar in bytes.
func (s *sidecar) rss() int {
	s.t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", s.cmd.Process.Pid))
	if err != nil {
		s.t.Fatal(err)
	}
	pages, err := strconv.Atoi(strings.Fields(string(stat))[1])
	if err != nil {
		s.t.Fatal(err)
	}
	return pages * os.Getpagesize()
}
