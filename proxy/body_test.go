package proxy

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testing/await"
	"github.com/locksidecar/locksidecar/lease"
	"github.com/locksidecar/locksidecar/proxy/internal/wire"
)

func TestBodies(t *testing.T) {
	f := start(t)
	c := f.dial()
	for body, part := range map[string]string{
		`{"wait_ms":-2}`:                                 "wait_ms",
		`{"wait_ms":86400001}`:                           "86400000",
		`{"wait_ms":1.5}`:                                "wait_ms",
		`{"wait_ms":1.0}`:                                "wait_ms",
		`{"wait_ms":1e3}`:                                "wait_ms",
		`{"wait_ms":-0.0}`:                               "wait_ms",
		`{"wait_ms":"1"}`:                                "wait_ms is a string",
		`{"wait_ms":null}`:                               "wait_ms is null",
		`{"wait_ms":[1]}`:                                "wait_ms is an array",
		`{"wait_ms":{}}`:                                 "wait_ms is an object",
		`{"wait_ms":true}`:                               "wait_ms is a boolean",
		`{"wait_ms":99999999999999999999999}`:            "wait_ms",
		`{"ttl_ms":499}`:                                 "ttl_ms",
		`{"ttl_ms":86400001}`:                            "ttl_ms",
		`{"ttl_ms":-1}`:                                  "ttl_ms",
		`{"bind":"lease"}`:                               "bind",
		`{"mode":"read"}`:                                "mode",
		`{"limit":3}`:                                    `limit is only for "mode":"shared"`,
		`{"mode":"exclusive","limit":3}`:                 "limit",
		`{"mode":"shared","limit":0}`:                    "limit",
		`{"mode":"shared","limit":1001}`:                 "1000",
		`{"mode":"shared","owner":"o","reentrant":true}`: `reentrant is not for "mode":"shared"`,
		`{"mode":"shared","on_success":"skip"}`:          "on_success",
		`{"bind":1}`:                                     "bind",
		`{"bind":"TTL"}`:                                 "bind",
		`{"request_id":"4711"}`:                          "request_id",
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
	if f.locks.sessions() != 0 || f.locks.granted() != 0 {
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

func TestValidBodies(t *testing.T) {
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
		{`{"mode":"exclusive"}`, lease.Request{}},
		{`{"mode":"shared"}`, lease.Request{Shared: true}},
		{`{"mode":"shared","limit":1000,"owner":"o"}`, lease.Request{Shared: true, Limit: 1000, Owner: "o"}},
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

// Proves: threat flood
func TestSizes(t *testing.T) {
	f := start(t, func(c *Config) { c.Timeouts.Linger = await.Patience }) // in which the client sends what is refused
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

// nested is JSON of n levels.
func nested(n int) string { return strings.Repeat(`[{"]":`, n/2) + "1" + strings.Repeat("}]", n/2) }

// Data that is nested deeper than others can read is refused: it would stand in their
// answers.
// Proves: threat control characters
func TestDeepData(t *testing.T) {
	f := start(t)
	c := f.dial()
	c.do("PUT", "/v1/locks/a", `{"data":`+nested(wire.MaxDepth)+`}`).want(t, 200, "")
	c.do("PUT", "/v1/locks/b", `{"data":"`+strings.Repeat("[", 4000)+`"}`).want(t, 200, "")
	for _, depth := range []int{wire.MaxDepth + 2, 600, 12_000} {
		for method, target := range map[string]string{"PUT": "/v1/locks/c", "PATCH": "/v1/locks/a", "DELETE": "/v1/locks/a?token=1&outcome=success"} {
			field := map[string]string{"PUT": `"data"`, "PATCH": `"token":1,"data"`, "DELETE": `"result"`}[method]
			a := f.dial().do(method, target, "{"+field+":"+nested(depth)+"}")
			if a.StatusCode != 400 && a.StatusCode != 413 {
				t.Errorf("%s, %d levels: %s", method, depth, a.text)
			}
			if depth == wire.MaxDepth+2 {
				a.detail(t, "nested deeper than 64 levels")
			}
		}
	}
}
