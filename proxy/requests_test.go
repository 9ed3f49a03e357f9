package proxy

import (
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/lease"
)

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
		"":                                  {400, "empty"},
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
		"/stop":                             {400, "empty"},
		"/events":                           {400, "empty"},
		"%zz/events":                        {400, "escape"},
		"a#b":                               {400, "%23"},
	} {
		code := map[int]string{400: "invalid_request", 404: "not_found"}[want.status]
		a := c.do("GET", "/v1/locks/"+target, "")
		a.want(t, want.status, code)
		a.detail(t, want.part)
	}
}

func TestPaths(t *testing.T) {
	f := start(t)
	for _, want := range []struct {
		request string
		status  int
		allow   string
	}{
		{"GET /", 404, ""},
		{"GET /v1/", 404, ""},
		{"GET /v1/locksmith", 404, ""},
		{"GET //v1/locks", 404, ""},
		{"GET /v1/./locks", 404, ""},
		{"GET /v1/x/../locks", 404, ""},
		{"GET /v1%2Flocks", 404, ""},
		{"GET /V1/locks", 404, ""},
		{"GET *", 404, ""},
		{"OPTIONS *", 404, ""},
		{"POST /v1", 405, "GET"},
		{"HEAD /v1", 405, "GET"},
		{"PUT /v1/locks", 405, "GET, POST"},
		{"HEAD /v1/locks", 405, "GET, POST"},
		{"GET /v1/locks/a/stop", 405, "POST"},
		{"HEAD /v1/locks/a/stop", 405, "POST"},
		{"POST /v1/locks/a/events", 405, "GET"},
		{"HEAD /v1/locks/a/events", 405, "GET"},
		{"POST /v1/locks/a", 405, "GET, PUT, PATCH, DELETE"},
		{"HEAD /v1/locks/a", 405, "GET, PUT, PATCH, DELETE"},
		{"GET http://localhost/v1/locks/a", 200, ""},
		{"GET HTTP://localhost:80/v1", 200, ""},
		{"GET http://localhost", 404, ""},
		{"GET https://localhost/v1", 404, ""},
		{"GET /v1/locks?prefix=a://b", 200, ""},
		{"GET http://localhost/v1/locks/%2e%2e?", 200, ""},
		{"GET http://localhost/v1/locks/a?token=1", 400, ""},
	} {
		request := want.request
		c := f.dial()
		method, target, _ := strings.Cut(request, " ")
		c.request(method, target, "")
		if method == "HEAD" {
			line, _ := c.r.ReadString('\n')
			if !strings.Contains(line, "405") {
				t.Errorf("%s: %q", request, line)
			}
			continue
		}
		a := c.read()
		if a.StatusCode != want.status || a.Header.Get("Allow") != want.allow {
			t.Errorf("%s: %d, Allow %q: %s", request, a.StatusCode, a.Header.Get("Allow"), a.text)
		}
		if want.status == 200 && strings.Contains(request, "%2e") && a.json["key"] != ".." {
			t.Error(a.text)
		}
	}
}

func TestQueries(t *testing.T) {
	f := start(t)
	c := f.dial()
	for request, part := range map[string]string{
		"DELETE /v1/locks/a":                               "token is missing",
		"DELETE /v1/locks/a?token=":                        "token",
		"DELETE /v1/locks/a?token":                         "token",
		"DELETE /v1/locks/a?token=0":                       "token",
		"DELETE /v1/locks/a?token=-1":                      "token",
		"DELETE /v1/locks/a?token=01":                      "token",
		"DELETE /v1/locks/a?token=1.0":                     "token",
		"DELETE /v1/locks/a?token=1e3":                     "token",
		"DELETE /v1/locks/a?token=%2B1":                    "token",
		"DELETE /v1/locks/a?token=9007199254740992":        "9007199254740991",
		"DELETE /v1/locks/a?token=99999999999999999999":    "token",
		"DELETE /v1/locks/a?token=1&token=1":               "twice",
		"DELETE /v1/locks/a?token=1&to%6ben=1":             "twice",
		"DELETE /v1/locks/a?Token=1":                       "Token",
		"DELETE /v1/locks/a?token=%zz":                     "token",
		"DELETE /v1/locks/a?%zz=1":                         "escape",
		"DELETE /v1/locks/a?token=1&":                      "", // nothing behind the & is nothing
		"DELETE /v1/locks/a?token=1&&x=1":                  `""`,
		"DELETE /v1/locks/a?token=1&outcome=maybe":         "success or failure",
		"DELETE /v1/locks/a?token=1&outcome=":              "outcome",
		"DELETE /v1/locks/a?outcome=success":               "token is missing",
		"DELETE /v1/locks/a?token=1&reentry=0":             "reentry",
		"DELETE /v1/locks/a?token=1&reentry=2147483648":    "2147483647",
		"DELETE /v1/locks/a?token=1&reentry=one":           "reentry",
		"DELETE /v1/locks/a?force=yes":                     "true or false",
		"DELETE /v1/locks/a?force":                         "force",
		"DELETE /v1/locks/a?force=false":                   "token is missing",
		"DELETE /v1/locks/a?force=true&token=1":            "token",
		"DELETE /v1/locks/a?force=true&outcome=failure":    "outcome",
		"DELETE /v1/locks/a?force=true&reentry=1":          "reentry",
		"POST /v1/locks/a/stop?reason=x":                   "reason",
		"GET /v1/locks/a/events?since=1":                   "since",
		"POST /v1/locks?keys=a":                            "keys",
		"PUT /v1/locks/a?wait_ms=1":                        "wait_ms",
		"PATCH /v1/locks/a?token=1":                        "token",
		"GET /v1/locks/a?x=1":                              `"x"`,
		"GET /v1?x":                                        `"x"`,
		"GET /healthz?x=1":                                 `"x"`,
		"GET /v1/locks?limit=0":                            "limit",
		"GET /v1/locks?limit=1001":                         "1000",
		"GET /v1/locks?limit=ten":                          "limit",
		"GET /v1/locks?scope=mine":                         "scope",
		"GET /v1/locks?type=":                              "type",
		"GET /v1/locks?type=a%3Ab":                         "colon",
		"GET /v1/locks?cursor=":                            "cursor",
		"GET /v1/locks?cursor=a=":                          "cursor",
		"GET /v1/locks?cursor=AA":                          "cursor",
		"GET /v1/locks?cursor=Zh":                          "cursor",
		"GET /v1/locks?prefix=%FF":                         "prefix",
		"GET /v1/locks?prefix=%00":                         "prefix",
		"GET /v1/locks?prefix=" + strings.Repeat("p", 513): "prefix",
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

func TestBodies(t *testing.T) {
	f := start(t)
	c := f.dial()
	for body, part := range map[string]string{
		`{"wait_ms":-2}`:                      "wait_ms",
		`{"wait_ms":86400001}`:                "86400000",
		`{"wait_ms":1.5}`:                     "wait_ms",
		`{"wait_ms":1.0}`:                     "wait_ms",
		`{"wait_ms":1e3}`:                     "wait_ms",
		`{"wait_ms":-0.0}`:                    "wait_ms",
		`{"wait_ms":"1"}`:                     "wait_ms is a string",
		`{"wait_ms":null}`:                    "wait_ms is null",
		`{"wait_ms":[1]}`:                     "wait_ms is an array",
		`{"wait_ms":{}}`:                      "wait_ms is an object",
		`{"wait_ms":true}`:                    "wait_ms is a boolean",
		`{"wait_ms":99999999999999999999999}`: "wait_ms",
		`{"ttl_ms":499}`:                      "ttl_ms",
		`{"ttl_ms":86400001}`:                 "ttl_ms",
		`{"ttl_ms":-1}`:                       "ttl_ms",
		`{"bind":"lease"}`:                    "bind",
		`{"bind":1}`:                          "bind",
		`{"bind":"TTL"}`:                      "bind",
		`{"request_id":"f81d4fae-7dec-11d0-a765-00a0c91e6bf6"}`:                "bind",
		`{"bind":"ttl","request_id":"f81d4fae7dec11d0a76500a0c91e6bf6"}`:       "request_id",
		`{"bind":"ttl","request_id":"{f81d4fae-7dec-11d0-a765-00a0c91e6bf6}"}`: "request_id",
		`{"bind":"ttl","request_id":"00000000-0000-0000-0000-000000000000"}`:   "request_id",
		`{"bind":"ttl","request_id":7}`:                                        "request_id",
		`{"Wait_ms":1}`:                                                        "Wait_ms",
		`{"wait":1}`:                                                           `"wait"`,
		`{"wait_ms":1,"wait_ms":1}`:                                            "wait_ms is given twice",
		`{"wait_ms":1,"wait\u005fms":1}`:                                       "wait_ms is given twice",
		`{"wait_ms":1} x`:                                                      "after top-level value",
		`{"wait_ms":1}{}`:                                                      "after top-level value",
		`{"wait_ms":1,}`:                                                       "JSON",
		`{"wait_ms":01}`:                                                       "JSON",
		`{"wait_ms":+1}`:                                                       "JSON",
		`{'wait_ms':1}`:                                                        "JSON",
		`{"wait_ms"`:                                                           "JSON",
		` `:                                                                    "JSON",
		"\ufeff{}":                                                             "JSON",
		`[]`:                                                                   "an array",
		`"x"`:                                                                  "a string",
		`null`:                                                                 "null",
		`7`:                                                                    "a number",
		`true`:                                                                 "a boolean",
		"{\"data\":\"\xff\"}":                                                  "UTF-8",
		`{"owner":7}`:                                                          "owner is a number",
		`{"owner":null}`:                                                       "owner is null",
		`{"owner":""}`:                                                         "owner has 0 bytes",
		`{"owner":"a\nb"}`:                                                     "U+000A",
		`{"owner":"\ud800"}`:                                                   "surrogate",
		`{"owner":"x\udc00"}`:                                                  "surrogate",
		`{"owner":"\ud83d\ud83d"}`:                                             "surrogate",
		`{"owner":"` + strings.Repeat("ä", 128) + `"}`:    "owner has 256 bytes",
		`{"reentrant":1,"owner":"x"}`:                     "reentrant is a number",
		`{"reentrant":"true","owner":"x"}`:                "reentrant is a string",
		`{"reentrant":null}`:                              "reentrant is null",
		`{"reentrant":true}`:                              "owner",
		`{"max_hold_ms":-1}`:                              "max_hold_ms",
		`{"max_hold_ms":86400001}`:                        "86400000",
		`{"max_hold_ms":"1"}`:                             "max_hold_ms is a string",
		`{"min_hold_ms":-1}`:                              "min_hold_ms",
		`{"min_hold_ms":86400001}`:                        "86400000",
		`{"min_hold_ms":1.5}`:                             "min_hold_ms",
		`{"min_hold_ms":1001,"max_hold_ms":1000}`:         "min_hold_ms is 1001",
		`{"on_success":"run"}`:                            "on_success",
		`{"on_success":true}`:                             "on_success is a boolean",
		`{"on_success":null}`:                             "on_success is null",
		`{"bind":"ttl","owner":"x"}`:                      "owner",
		`{"bind":"ttl","reentrant":false}`:                "reentrant",
		`{"bind":"ttl","max_hold_ms":0}`:                  "max_hold_ms",
		`{"bind":"ttl","min_hold_ms":15001}`:              "15000",
		`{"bind":"ttl","min_hold_ms":1001,"ttl_ms":1000}`: "min_hold_ms is 1001",
		`{"keys":["a"]}`:                                  `"keys"`,
	} {
		a := c.do("PUT", "/v1/locks/a", body)
		a.want(t, 400, "invalid_request")
		a.detail(t, part)
	}
	if f.locks.opened != 0 || f.locks.token != 0 {
		t.Error("a refused request did something")
	}
	for body, part := range map[string]string{
		"":                              `token is missing`,
		`{"token":"1"}`:                 "token",
		`{"token":0}`:                   "token",
		`{"token":9007199254740992}`:    "token",
		`{"token":1,"wait_ms":1}`:       "wait_ms",
		`{"token":1,"ttl_ms":0}`:        "ttl_ms",
		`{"token":1,"data":1,"data":1}`: "twice",
	} {
		a := c.do("PATCH", "/v1/locks/a", body)
		a.want(t, 400, "invalid_request")
		a.detail(t, part)
	}
	for target, body := range map[string]string{
		"/v1/locks/a?token=1":                 `{"result":1}`,
		"/v1/locks/a?token=2":                 `{"result":null}`,
		"/v1/locks/a?token=1&outcome=failure": `{"result":1}`,
		"/v1/locks/a?force=true":              `{"result":1}`,
	} {
		a := c.do("DELETE", target, body)
		a.want(t, 400, "invalid_request")
		a.detail(t, "result")
	}
	c.do("DELETE", "/v1/locks/a?token=1", `{"token":1}`).detail(t, "token")
	c.do("GET", "/v1/locks/a", `{"token":1}`).detail(t, "token")
	c.do("GET", "/v1/locks/a", `{}`).want(t, 200, "")
}

func TestBodiesThatAreRight(t *testing.T) {
	f := start(t)
	c := f.dial()
	for i, tt := range []struct {
		body string
		want lease.Request
	}{
		{"", lease.Request{}},
		{"{}", lease.Request{}},
		{" {\t}\r\n", lease.Request{}},
		{`{"wait_ms":-1}`, lease.Request{Wait: lease.WaitForever}},
		{`{ "wait_ms" : 86400000 , "ttl_ms" : 500 }`, lease.Request{Wait: 24 * time.Hour, TTL: 500 * time.Millisecond}},
		{`{"bind":"session","data":null}`, lease.Request{}},
		{`{"data": {"a": [1, "}", {}], "b\"": null} }`, lease.Request{Data: []byte(`{"a":[1,"}",{}],"b\"":null}`)}},
		{`{"data":"€ \u00e4 "}`, lease.Request{Data: []byte(`"€ \u00e4 "`)}},
		{`{"data":-1.5e3}`, lease.Request{Data: []byte(`-1.5e3`)}},
		{`{"data":false}`, lease.Request{Data: []byte(`false`)}},
		{`{"data":{"a":1,"a":2}}`, lease.Request{Data: []byte(`{"a":1,"a":2}`)}},
		{`{"owner":"\ud83d\ude00 \\ud800"}`, lease.Request{Owner: `😀 \ud800`}},
		{`{"owner":"` + strings.Repeat("o", 255) + `"}`, lease.Request{Owner: strings.Repeat("o", 255)}},
		{`{"reentrant":true,"owner":"thread 7"}`, lease.Request{Owner: "thread 7", Reentrant: true}},
		{`{"reentrant":false}`, lease.Request{}},
		{`{"max_hold_ms":86400000,"min_hold_ms":86400000}`, lease.Request{MaxHold: 24 * time.Hour, MinHold: 24 * time.Hour}},
		{`{"max_hold_ms":0,"min_hold_ms":5}`, lease.Request{MinHold: 5 * time.Millisecond}},
		{`{"on_success":"skip"}`, lease.Request{Skip: true}},
		{`{"on_success":"acquire"}`, lease.Request{}},
		{`{"bind":"ttl","min_hold_ms":15000}`, lease.Request{Bind: lease.BindTTL, MinHold: 15 * time.Second}},
		{
			`{"bind":"ttl","min_hold_ms":20000,"ttl_ms":20000,"on_success":"skip"}`,
			lease.Request{Bind: lease.BindTTL, TTL: 20 * time.Second, MinHold: 20 * time.Second, Skip: true},
		},
	} {
		c.do("PUT", fmt.Sprintf("/v1/locks/k%d", i), tt.body, "Content-Type: text/x-nonsense").want(t, 200, "")
		got := f.locks.last
		got.Key = ""
		if fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", tt.want) {
			t.Errorf("%s: got %+v", tt.body, got)
		}
	}
}

func TestSizes(t *testing.T) {
	f := start(t)
	c := f.dial()
	data := func(n int) string { return `{"data":"` + strings.Repeat("x", n-2) + `"}` }
	c.do("PUT", "/v1/locks/a", data(4096)).want(t, 200, "")
	a := c.do("PUT", "/v1/locks/b", data(4097))
	a.want(t, 413, "too_large")
	a.detail(t, "data", "4097", "4096")
	spaces := `{"data":"x"` + strings.Repeat(" ", 60<<10) + `}`
	c.do("PUT", "/v1/locks/c", spaces).want(t, 200, "")
	c.do("GET", "/v1", "", "X-Filler: "+strings.Repeat("x", 16<<10-100)).want(t, 200, "")

	for name, request := range map[string]string{
		"1 MiB body":               requestText("PUT", "/v1/locks/d", strings.Repeat(" ", 1<<20)),
		"1 MiB body, in chunks":    "PUT /v1/locks/d HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + strings.Repeat("8000\r\n"+strings.Repeat(" ", 0x8000)+"\r\n", 32) + "0\r\n\r\n",
		"1 MiB body, 100-continue": requestText("PUT", "/v1/locks/d", strings.Repeat(" ", 1<<20), "Expect: 100-continue"),
	} {
		c := f.dial()
		c.send(request) // all of it can be written
		a := c.readPast100()
		if a.StatusCode != 413 || a.json["code"] != "too_large" {
			t.Errorf("%s: %s", name, a.text)
		}
	}
	for name, head := range map[string]string{
		"long header":       "GET /v1 HTTP/1.1\r\nHost: x\r\nX: " + strings.Repeat("x", 1<<20),
		"many headers":      "GET /v1 HTTP/1.1\r\nHost: x\r\n" + strings.Repeat("X: y\r\n", 100_000),
		"long path":         "GET /" + strings.Repeat("x", 1<<20),
		"long method":       strings.Repeat("G", 1<<20),
		"header over limit": requestText("GET", "/v1", "", "X-Filler: "+strings.Repeat("x", 16<<10)),
	} {
		c := f.dial()
		c.send(head)
		a := c.read()
		if a.StatusCode != 431 || a.json["code"] != "head_too_large" {
			t.Errorf("%s: %s", name, a.text)
		}
		a.detail(t, "16384")
	}
}

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
func TestSlowRequests(t *testing.T) {
	f := start(t, func(c *Config) { c.Timeouts.Request = 100 * time.Millisecond })
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
	eventually(t, "there is room", func() bool { return len(f.openConns()) == 1 })
	f.dial().do("GET", "/v1", "").want(t, 200, "")

	var silent []*client
	for range maxRefused + 10 {
		silent = append(silent, f.dial())
	}
	if n, err := silent[maxRefused+9].Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
		t.Error(n, err)
	}
}

func TestTCPIsForThisMachine(t *testing.T) {
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
	// Locks end with their connection here too.
	c := dialTo(t, "tcp", addr)
	c.do("PUT", "/v1/locks/a", "").want(t, 200, "")
	_ = c.Close()
	hear(t, f.locks.ended, "the session's end")
}

func TestTraceparent(t *testing.T) {
	const good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	for value, want := range map[string]bool{
		good: true, strings.ToUpper(good): false, good + "-x": false, "01" + good[2:] + "-x": true, "01" + good[2:] + "x": false,
		"ff" + good[2:]: false, good[:54]: false, "": false, strings.Replace(good, "4bf92f3577b34da6a3ce929d0e0e4736", strings.Repeat("0", 32), 1): false,
		strings.Replace(good, "00f067aa0ba902b7", strings.Repeat("0", 16), 1): false, strings.Replace(good, "-", "_", 1): false,
		strings.Replace(good, "4b", "4g", 1): false,
	} {
		if got := validTraceparent([]byte(value)); got != want {
			t.Errorf("%q: %v", value, got)
		}
	}
}

// What is behind the part that is known may be anything. The store is not asked to keep it.
func TestTheRestOfATraceparentIsNotHandedOn(t *testing.T) {
	const known = "4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	f := start(t)
	c := f.dial()
	for i, rest := range []string{"-what-the-future-brings", "-\xff\xfe", "-" + strings.Repeat("x", 10_000)} {
		key := fmt.Sprintf("/v1/locks/a%d", i)
		c.do("PUT", key, "", "traceparent: 01-"+known+rest).want(t, 200, "")
		if got := f.locks.last.Traceparent; got != "01-"+known {
			t.Errorf("%.40q: %.99q", rest, got)
		}
	}
}
