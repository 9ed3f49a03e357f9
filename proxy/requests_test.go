package proxy

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/valyala/fasthttp"

	"github.com/locksidecar/locksidecar/internal/testing/await"
	"github.com/locksidecar/locksidecar/proxy/internal/conn"
)

// Proves: A4, threat malformed request
func TestKeys(t *testing.T) {
	f := start(t)
	c := f.dial()
	for target, key := range map[string]string{
		"workflow:123":           "workflow:123",
		"..":                     "..",
		".":                      ".",
		"a%2Fstop":               "a/stop",
		"a%2fevents":             "a/events",
		"%2F%2F":                 "//",
		"a%252F":                 "a%2F",
		"a+b":                    "a+b",
		"%C3%A4":                 "ä",
		"\xc3\xa4":               "ä",
		"%E2%82%AC%20x":          "€ x",
		"%22%5C":                 `"\`,
		"%C2%A0":                 "\u00a0",
		strings.Repeat("k", 512): strings.Repeat("k", 512),
		"a;b,c=d&e":              "a;b,c=d&e",
		"%3F%23":                 "?#",
		"stop":                   "stop",
	} {
		a := c.do("GET", "/v1/locks/"+target, "")
		a.want(t, 200, "")
		if a.json["key"] != key {
			t.Errorf("%q: key is %q, want %q", target, a.json["key"], key)
		}
	}
	for target, want := range map[string]struct {
		status int
		part   string
	}{
		"":                                  {400, "0 bytes"},
		"%":                                 {400, "escape"},
		"a%2":                               {400, "escape"},
		"a%zz":                              {400, "escape"},
		"a%00":                              {400, "U+0000"},
		"a%1F":                              {400, "U+001F"},
		"a%7F":                              {400, "U+007F"},
		"%C2%85":                            {400, "U+0085"},
		"%FF":                               {400, "UTF-8"},
		"%C3":                               {400, "UTF-8"},
		"%ED%A0%80":                         {400, "UTF-8"},
		"%C0%AF":                            {400, "UTF-8"},
		"\xff":                              {400, "UTF-8"},
		strings.Repeat("k", 513):            {400, "513"},
		strings.Repeat("%C3%A4", 256) + "a": {400, "513"},
		"a/b":                               {404, "%2F"},
		"a/":                                {404, "%2F"},
		"../../healthz":                     {404, "%2F"},
		"a/stop/":                           {404, "%2F"},
		"a/b/stop":                          {404, "%2F"},
		"a/%73top":                          {404, "%2F"},
		"a/Events":                          {404, "%2F"},
		"/stop":                             {400, "0 bytes"},
		"/events":                           {400, "0 bytes"},
		"%zz/events":                        {400, "escape"},
		"a#b":                               {400, "%23"},
	} {
		code := map[int]string{400: "invalid_request", 404: "not_found"}[want.status]
		a := c.do("GET", "/v1/locks/"+target, "")
		a.want(t, want.status, code)
		a.detail(t, want.part)
	}
}

// Proves: threat malformed request
func TestPaths(t *testing.T) {
	f := start(t)
	for _, want := range []struct {
		request string
		status  int
		allow   string
	}{
		{"GET /", 200, ""},
		{"GET /?x=1", 400, ""},
		{"PUT /", 405, "GET, HEAD"},
		{"GET /v1/", 404, ""},
		{"GET /v1/locksmith", 404, ""},
		{"GET //v1/locks", 404, ""},
		{"GET /v1/./locks", 404, ""},
		{"GET /v1/x/../locks", 404, ""},
		{"GET /v1%2Flocks", 404, ""},
		{"GET /V1/locks", 404, ""},
		{"GET *", 404, ""},
		{"OPTIONS *", 404, ""},
		{"POST /v1", 405, "GET, HEAD"},
		{"PUT /v1/locks", 405, "GET, HEAD, POST"},
		{"GET /v1/locks/a/stop", 405, "POST"},
		{"POST /v1/locks/a/events", 405, "GET"},
		{"POST /v1/locks/a", 405, "GET, HEAD, PUT, PATCH, DELETE"},
		{"get /v1", 405, "GET, HEAD"},
		{"GET http://localhost/v1/locks/a", 200, ""},
		{"GET HTTP://localhost:80/v1", 200, ""},
		{"GET http://localhost", 200, ""},
		{"GET https://localhost/v1", 404, ""},
		{"GET /v1/locks?prefix=a://b", 200, ""},
		{"GET http://localhost/v1/locks/%2e%2e?", 200, ""},
		{"GET http://localhost/v1/locks/a?token=1", 400, ""},
	} {
		request := want.request
		c := f.dial()
		method, target, _ := strings.Cut(request, " ")
		c.request(method, target, "")
		a := c.read()
		if a.StatusCode != want.status || a.Header.Get("Allow") != want.allow {
			t.Errorf("%s: %d, Allow %q: %s", request, a.StatusCode, a.Header.Get("Allow"), a.text)
		}
		if want.status == 200 && strings.Contains(request, "%2e") && a.json["key"] != ".." {
			t.Error(a.text)
		}
	}
}

// HEAD is answered as GET is, without the body. A stream is nothing but its body.
func TestHead(t *testing.T) {
	f := start(t, func(c *Config) {
		c.MetricsHandler = func(ctx *fasthttp.RequestCtx) {
			ctx.SetContentType("text/plain; version=0.0.4")
			ctx.SetBodyString("x 1\n")
		}
	})
	c := f.dial()
	c.do("PUT", "/v1/locks/a", "").want(t, 200, "")
	for _, target := range []string{
		"/", "/v1", "/v1/locks", "/v1/locks?limit=0", "/v1/locks/a", "/v1/locks/b", "/v1/locks/%zz", "/v1/stats", "/metrics",
		"/healthz", "/readyz", "/v1/nothing",
	} {
		c.request("GET", target, "")
		get, err := http.ReadResponse(c.r, nil)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(get.Body)
		if err != nil || len(body) == 0 {
			t.Fatalf("%s: %q, %v", target, body, err)
		}
		_ = get.Body.Close()
		status, header, length := c.head(target)
		longer := length - get.ContentLength
		header.Del("Content-Length")
		get.Header.Del("Content-Length")
		if status != get.StatusCode || !maps.EqualFunc(header, get.Header, slices.Equal) ||
			longer < 0 || longer > 8 { // times have grown meanwhile
			t.Errorf("%s: HEAD says %d %d %v, GET %d %d %v", target, status, length, header, get.StatusCode, get.ContentLength, get.Header)
		}
	}
	if status, header, _ := c.head("/v1/locks/a/events"); status != 405 || header.Get("Allow") != "GET" {
		t.Errorf("HEAD of a stream: %d, Allow %q", status, header.Get("Allow"))
	}
	await.Silent(t, f.locks.watching, "watch")
	c.do("DELETE", "/v1/locks/a?token=1", "").want(t, 200, "")
}

// head makes a call with HEAD, and reads the head that is its answer.
func (c *client) head(target string) (status int, header http.Header, length int64) {
	c.t.Helper()
	c.request(http.MethodHead, target, "")
	head, err := http.ReadResponse(c.r, &http.Request{Method: http.MethodHead})
	if err != nil {
		c.t.Fatal(err)
	}
	_ = head.Body.Close()
	return head.StatusCode, head.Header, head.ContentLength
}

func TestQueries(t *testing.T) {
	f := start(t)
	c := f.dial()
	for request, part := range map[string]string{
		"DELETE /v1/locks/a":                                                            "token is missing",
		"DELETE /v1/locks/a?token=":                                                     "token",
		"DELETE /v1/locks/a?token":                                                      "token",
		"DELETE /v1/locks/a?token=0":                                                    "token",
		"DELETE /v1/locks/a?token=-1":                                                   "token",
		"DELETE /v1/locks/a?token=01":                                                   "token",
		"DELETE /v1/locks/a?token=1.0":                                                  "token",
		"DELETE /v1/locks/a?token=1e3":                                                  "token",
		"DELETE /v1/locks/a?token=%2B1":                                                 "token",
		"DELETE /v1/locks/a?token=9007199254740992":                                     "9007199254740991",
		"DELETE /v1/locks/a?token=99999999999999999999":                                 "token",
		"DELETE /v1/locks/a?token=1&token=1":                                            "twice",
		"DELETE /v1/locks/a?token=1&to%6ben=1":                                          "twice",
		"DELETE /v1/locks/a?Token=1":                                                    "Token",
		"DELETE /v1/locks/a?token=%zz":                                                  "token",
		"DELETE /v1/locks/a?%zz=1":                                                      "escape",
		"DELETE /v1/locks/a?token=1&":                                                   "", // nothing behind the & is nothing
		"DELETE /v1/locks/a?token=1&&x=1":                                               `""`,
		"DELETE /v1/locks/a?token=1&outcome=maybe":                                      "success or failure",
		"DELETE /v1/locks/a?token=1&outcome=":                                           "outcome",
		"DELETE /v1/locks/a?outcome=success":                                            "token is missing",
		"DELETE /v1/locks/a?token=1&reentry=0":                                          "reentry",
		"DELETE /v1/locks/a?token=1&reentry=2147483648":                                 "2147483647",
		"DELETE /v1/locks/a?token=1&reentry=one":                                        "reentry",
		"DELETE /v1/locks/a?request_id=1":                                               "request_id must be a UUID",
		"DELETE /v1/locks/a?reentry=1&request_id=f81d4fae-7dec-41d0-a765-00a0c91e6bf6":  "reentry",
		"DELETE /v1/locks/a?force=true&request_id=f81d4fae-7dec-41d0-a765-00a0c91e6bf6": "request_id",
		"DELETE /v1/locks/a?force=yes":                                                  "true or false",
		"DELETE /v1/locks/a?force":                                                      "force",
		"DELETE /v1/locks/a?force=false":                                                "token is missing",
		"DELETE /v1/locks/a?force=true&token=0":                                         "token",
		"DELETE /v1/locks/a?force=true&outcome=failure":                                 "outcome",
		"DELETE /v1/locks/a?force=true&reentry=1":                                       "reentry",
		"POST /v1/locks/a/stop?reason=x":                                                "reason",
		"GET /v1/locks/a/events?since=1":                                                "since",
		"POST /v1/locks?keys=a":                                                         "keys",
		"PUT /v1/locks/a?wait_ms=1":                                                     "wait_ms",
		"PATCH /v1/locks/a?token=1":                                                     "token",
		"GET /v1/locks/a?x=1":                                                           `"x"`,
		"GET /v1?x":                                                                     `"x"`,
		"GET /healthz?x=1":                                                              `"x"`,
		"GET /v1/locks?limit=0":                                                         "limit",
		"GET /v1/locks?limit=1001":                                                      "1000",
		"GET /v1/locks?limit=ten":                                                       "limit",
		"GET /v1/locks?scope=mine":                                                      "scope",
		"GET /v1/locks?type=":                                                           "type",
		"GET /v1/locks?type=a%3Ab":                                                      "colon",
		"GET /v1/locks?cursor=":                                                         "cursor",
		"GET /v1/locks?cursor=a=":                                                       "cursor",
		"GET /v1/locks?cursor=AA":                                                       "cursor",
		"GET /v1/locks?cursor=Zh":                                                       "cursor",
		"GET /v1/locks?prefix=%FF":                                                      "prefix",
		"GET /v1/locks?prefix=%00":                                                      "prefix",
		"GET /v1/locks?prefix=" + strings.Repeat("p", 513):                              "prefix",
	} {
		method, target, _ := strings.Cut(request, " ")
		a := c.do(method, target, "")
		if part == "" {
			if a.StatusCode == 400 {
				t.Errorf("%s: %s", request, a.text)
			}
			continue
		}
		a.want(t, 400, "invalid_request")
		a.detail(t, part)
	}
}

// Proves: threat malformed request
func TestMalformedRequests(t *testing.T) {
	f := start(t)
	for _, request := range []string{
		"hello\r\n\r\n", "GET\r\n\r\n", "GET /v1 HTTP/9\r\n\r\n", "GET /v1 HTTP/1.1\r\n\r\n",
		"GET /v1 HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", "GET /v1 HTTP/1.1\r\nHost: x\r\nno colon\r\n\r\n",
		"PUT /v1/locks/a HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
		"PUT /v1/locks/a HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\nx",
		"PUT /v1/locks/a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n",
		"PUT /v1/locks/a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
		"GET /v1\x01 HTTP/1.1\r\nHost: x\r\n\r\n", "GET v1 HTTP/1.1\r\nHost: x\r\n\r\n",
	} {
		c := f.dial()
		c.send(request)
		a := c.read()
		a.want(t, 400, "invalid_request")
		c.wantEnd()
	}
}

// Requests that come slowly, or not at all, keep nobody else waiting.
// Proves: threat slow client
func TestSlowRequests(t *testing.T) {
	t.Parallel()
	f := start(t, func(c *Config) { c.Timeouts.First, c.Timeouts.Request = unhurried, unhurried })
	idle := f.dial()
	idle.do("PUT", "/v1/locks/idle", "").want(t, 200, "")
	var slow []*client
	for _, text := range []string{
		"G", "GET /v1 HTTP/1.1\r\nHost: x\r\n", "PUT /v1/locks/a HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n{",
		"PUT /v1/locks/a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{",
		"PUT /v1/locks/a HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n",
	} {
		c := f.dial()
		c.send(text)
		slow = append(slow, c)
	}
	silentClient := f.dial()
	f.dial().do("PUT", "/v1/locks/fast", "").want(t, 200, "")
	for _, c := range slow {
		a := c.readPast100()
		a.want(t, 408, "request_timeout")
		c.wantEnd()
	}
	silentClient.wantEnd() // without a word
	idle.do("DELETE", "/v1/locks/idle?token=1", "").want(t, 200, "")
}

func (c *client) readPast100() answer {
	c.t.Helper()
	if line, _ := c.r.Peek(12); string(line) == "HTTP/1.1 100" {
		for line := ""; line != "\r\n"; line, _ = c.r.ReadString('\n') {
			continue
		}
	}
	return c.read()
}

// Proves: threat flood
func TestTooManyConnections(t *testing.T) {
	f := start(t, func(c *Config) { c.MaxConns = 2 })
	first, second := f.dial(), f.dial()
	first.do("GET", "/v1", "").want(t, 200, "")
	second.do("GET", "/v1", "").want(t, 200, "")
	third := f.dial()
	a := third.do("GET", "/v1", "")
	a.want(t, 429, "limit")
	if a.Header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
	third.wantEnd()
	_ = first.Close()
	await.Until(t, "there is room", func() bool { return len(f.conns.Conns()) == 1 })
	f.dial().do("GET", "/v1", "").want(t, 200, "")

	var silent []*client
	for range conn.MaxRefused + 10 {
		silent = append(silent, f.dial())
	}
	if n, err := silent[conn.MaxRefused+9].Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
		t.Error(n, err)
	}
}

// Proves: threat web page
func TestTCPServesOnlyThisMachine(t *testing.T) {
	f := start(t, func(c *Config) { c.TCPAddr = "127.0.0.1:0" })
	addr := f.TCPAddr().String()
	u, _ := url.Parse("http://" + addr)
	for _, tt := range []struct {
		target, host, origin string
		status               int
	}{
		{"/v1", addr, "", 200},
		{"/v1", "localhost", "", 200},
		{"/v1", "LOCALHOST:1", "", 200},
		{"/v1", "127.1.2.3:80", "", 200},
		{"/v1", "[::1]:80", "", 200},
		{"/v1", "[::1]", "", 200},
		{"/v1", addr, u.String(), 200},
		{"/v1", "evil.example", "", 403},
		{"/v1", "localhost.evil.example", "", 403},
		{"/v1", "10.0.0.1", "", 403},
		{"/v1", addr, "http://evil.example", 403},
		{"/v1", addr, "null", 403},
		{"/v1", addr, "http://localhost:3000", 403},
		{"/healthz", "evil.example", "", 403},
		{"http://evil.example/v1", addr, "", 403},
	} {
		c := dialTo(t, "tcp", addr)
		request := fmt.Sprintf("GET %s HTTP/1.1\r\nHost: %s\r\n", tt.target, tt.host)
		if tt.origin != "" {
			request += "Origin: " + tt.origin + "\r\n"
		}
		c.send(request + "\r\n")
		if a := c.read(); a.StatusCode != tt.status {
			t.Errorf("%+v: %s", tt, a.text)
		}
	}
	odd := dialTo(t, "tcp", addr)
	odd.send("GET /v1 HTTP/1.1\r\nHost: " + addr + "\r\nOrigin: http://evil.example\r\n\n\r\n\r\n")
	odd.read().want(t, 400, "invalid_request")
	// Of what a page embeds, such as an image, a browser names no origin.
	for site, status := range map[string]int{"none": 200, "same-origin": 200, "same-site": 403, "cross-site": 403, "": 403, "none, cross-site": 403} {
		a := dialTo(t, "tcp", addr).do("GET", "/v1/locks/a", "", "Sec-Fetch-Site: "+site)
		if a.StatusCode != status {
			t.Errorf("%s: %s", site, a.text)
		}
	}
	dialTo(t, "tcp", addr).do("GET", "/v1", "", "Sec-Fetch-Site: none", "Sec-Fetch-Site: cross-site").want(t, 403, "forbidden")
	// Locks end with their connection here too.
	c := dialTo(t, "tcp", addr)
	c.do("PUT", "/v1/locks/a", "").want(t, 200, "")
	_ = c.Close()
	await.Receive(t, f.locks.ended, "the session's end")
}
