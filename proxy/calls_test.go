package proxy

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testing/await"
	"github.com/locksidecar/locksidecar/lease"
	"github.com/locksidecar/locksidecar/store"
)

// members checks that an answer has these members and no others.
func members(t *testing.T, a answer, want ...string) {
	t.Helper()
	var got []string
	for name := range a.json {
		got = append(got, name)
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("members are %v, want %v", got, want)
	}
}

func TestAcquireUseRelease(t *testing.T) {
	f := start(t)
	c := f.dial()
	a := c.do("PUT", "/v1/locks/workflow:1", `{"wait_ms":0,"data":{"n": 1}}`)
	a.want(t, 200, "")
	members(t, a, "granted", "key", "token", "session", "bind", "reentry", "expires_in_ms", "waited_ms", "acquired_at", "mode", "limit", "slot")
	if a.json["granted"] != true || a.json["key"] != "workflow:1" || a.json["token"] != 1.0 || a.json["bind"] != "session" ||
		a.json["reentry"] != 1.0 || a.json["session"] != "public-1" || a.json["expires_in_ms"].(float64) <= 0 {
		t.Error(a.text)
	}
	if _, err := time.Parse(time.RFC3339, a.json["acquired_at"].(string)); err != nil {
		t.Error(err)
	}
	if a.Header.Get("Server") != "" || a.Header.Get("Date") != "" {
		t.Error(a.Header)
	}

	a = c.do("GET", "/v1/locks/workflow:1", "")
	a.want(t, 200, "")
	members(t, a, "key", "type", "state", "mine", "token", "mode", "limit", "holders_count", "holder", "kept", "holders", "queue_length", "cached", "stopping")
	if a.json["type"] != "workflow" || a.json["state"] != "held" || a.json["mine"] != true || a.json["stopping"] != nil {
		t.Error(a.text)
	}
	holder := answer{json: a.json["holder"].(map[string]any)}
	members(t, holder, "instance", "pod", "session", "owner", "acquired_at", "held_ms", "expires_in_ms", "data", "traceparent")
	if !strings.Contains(a.text, `"data":{"n":1}`) || holder.json["owner"] != nil {
		t.Error(a.text)
	}

	a = f.dial().do("GET", "/v1/locks/workflow:1", "")
	members(t, a, "key", "type", "state", "mine", "token", "mode", "limit", "holders_count", "holder", "kept", "holders", "queue_length", "cached", "stopping")
	if a.json["mine"] != false || a.json["token"] != nil {
		t.Error(a.text)
	}

	a = c.do("PATCH", "/v1/locks/workflow:1", `{"token":1,"data":null}`)
	a.want(t, 200, "")
	members(t, a, "granted", "key", "token", "session", "bind", "reentry", "expires_in_ms", "waited_ms", "acquired_at", "mode", "limit", "slot", "stopping")

	a = c.do("DELETE", "/v1/locks/workflow:1?token=1", "")
	a.want(t, 200, "")
	if !strings.HasPrefix(a.text, `{"key":"workflow:1","released":true,"reentry":0,"held_ms":`) {
		t.Error(a.text)
	}
	a = c.do("GET", "/v1/locks/workflow:1", "")
	if a.text != `{"key":"workflow:1","type":"workflow","state":"free","mine":false,"token":null,"mode":null,`+
		`"limit":null,"holders_count":0,"holder":null,"kept":false,"holders":[],"queue_length":0,"cached":false,"stopping":null}` {
		t.Error(a.text)
	}
}

func TestTTLLock(t *testing.T) {
	f := start(t)
	c := f.dial()
	a := c.do("PUT", "/v1/locks/cron", `{"bind":"ttl","ttl_ms":60000,"request_id":"f81d4fae-7dec-11d0-a765-00a0c91e6bf6"}`,
		"Connection: close", "Traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "Cache-Control: no-cache")
	a.want(t, 200, "")
	if a.json["session"] != nil || a.json["bind"] != "ttl" {
		t.Error(a.text)
	}
	c.wantEnd()
	got := f.locks.last
	if got.TTL != time.Minute || !got.NoCache || got.RequestID.String() != "f81d4fae-7dec-11d0-a765-00a0c91e6bf6" ||
		got.Traceparent != "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01" {
		t.Errorf("%+v", got)
	}
	if f.locks.sessions() != 0 {
		t.Error("a bind:ttl lock opened a session")
	}
	c = f.dial()
	c.do("PATCH", "/v1/locks/cron", `{"token":1,"ttl_ms":500}`).want(t, 200, "")
	c.do("DELETE", "/v1/locks/cron?token=1", "").want(t, 200, "")
}

func TestSessionLockNeedsPersistentConnection(t *testing.T) {
	f := start(t)
	for _, request := range []string{
		"PUT /v1/locks/a HTTP/1.0\r\n\r\n",
		"PUT /v1/locks/a HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
		"PUT /v1/locks/a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
		"PUT /v1/locks/a HTTP/1.1\r\nHost: x\r\nConnection: TE, Close\r\n\r\n",
	} {
		c := f.dial()
		c.send(request)
		a := c.read()
		a.want(t, 400, "invalid_request")
		a.detail(t, "Connection: close", "bind")
		c.wantEnd()
	}
	_, id := f.explicit()
	c := f.dial()
	c.do("PUT", "/v1/locks/a", "", "Connection: close", "Lock-Session: "+id).want(t, 200, "")
	c.wantEnd()
}

func TestErrorsFromLease(t *testing.T) {
	lock := store.Lock{Key: "k", Held: true, QueueLength: 3, Holder: store.Holder{Pod: "p"}}
	kept := lock
	kept.Kept = true
	for _, tt := range []struct {
		err     error
		status  int
		code    string
		members map[string]any
		retry   string
	}{
		{&lease.HeldError{Lock: lock}, 423, "held", map[string]any{"queue_length": 3.0, "cached": false}, ""},
		{&lease.HeldError{Lock: lock, Cached: true}, 423, "held", map[string]any{"cached": true, "kept": false}, ""},
		{&lease.HeldError{Lock: kept}, 423, "held", map[string]any{"kept": true}, ""},
		{&lease.TimeoutError{Lock: kept, Position: 1}, 423, "wait_timeout", map[string]any{"kept": true}, ""},
		{
			&lease.TimeoutError{Lock: lock, Position: 2, Waited: 1500 * time.Millisecond}, 423, "wait_timeout",
			map[string]any{"queue_position": 2.0, "waited_ms": 1500.0},
			"",
		},
		{
			&lease.NotHolderError{Key: "k", Token: 4, Reason: lease.ReasonReleased}, 409, "not_holder",
			map[string]any{"reason": "released"},
			"",
		},
		{
			&lease.LostError{Lost: lease.Lost{Key: "k", Reason: lease.LostStore}}, 410, "lock_lost",
			map[string]any{"reason": "store_lost"},
			"",
		},
		{&lease.LimitError{What: "waiters", Setting: "LOCKSIDECAR_MAX_WAITERS", Limit: 5}, 429, "limit", nil, "1"},
		{&lease.InvalidError{Of: "field ttl_ms", Text: "no"}, 400, "invalid_request", nil, ""},
		{&lease.NotHeldError{Key: "k"}, 404, "not_held", nil, ""},
		{&lease.ReentryError{Key: "k", Given: 1, Have: 2}, 400, "invalid_request", map[string]any{"reentry": 2.0}, ""},
		{
			&lease.ReentryError{Key: "k", Given: 3, Have: 2}, 409, "not_holder",
			map[string]any{"reentry": 2.0, "reason": "released"},
			"",
		},
		{fmt.Errorf("acquire: %w", lease.ErrSessionEnded), 410, "session_ended", nil, ""},
		{lease.ErrDraining, 503, "draining", nil, ""},
		{&store.Error{Op: "Acquire", Err: errors.New("refused")}, 503, "store_unavailable", nil, "1"},
		{errors.New("strange"), 500, "internal", nil, ""},
	} {
		f := start(t)
		f.locks.hook = func(op, _ string) error {
			if op == "open" {
				return nil
			}
			return tt.err
		}
		for _, method := range []string{"PUT", "GET", "DELETE"} {
			target := "/v1/locks/k"
			if method == "DELETE" {
				target += "?token=1"
			}
			c := f.dial()
			c.undocumented = true // each error here comes from each call
			a := c.do(method, target, "")
			a.want(t, tt.status, tt.code)
			if a.Header.Get("Retry-After") != tt.retry {
				t.Errorf("%s: Retry-After is %q", tt.code, a.Header.Get("Retry-After"))
			}
			for name, value := range tt.members {
				if !reflect.DeepEqual(a.json[name], value) {
					t.Errorf("%s: %s", name, a.text)
				}
			}
			if a.StatusCode == 423 && a.json["holder"] == nil {
				t.Errorf("holder: %s", a.text)
			}
		}
		f.Stop()
	}
}

func TestList(t *testing.T) {
	f := start(t)
	c := f.dial()
	if a := c.do("GET", "/v1/locks?scope=session", ""); a.text != `{"locks":[],"next_cursor":null}` {
		t.Error(a.text)
	}
	c.do("PUT", "/v1/locks/a%2Fb", "").want(t, 200, "")
	f.locks.take(t, "node:1a")
	f.locks.take(t, "node:1b")
	var asked string
	f.locks.hook = func(_, args string) error { asked = args; return nil }
	a := c.do("GET", "/v1/locks?prefix=node%3A1&type=node&limit=1", "")
	a.want(t, 200, "")
	cursor, _ := a.json["next_cursor"].(string)
	if asked != "{Namespace: Scope:0 Prefix:node:1 After: Limit:1}" || cursor == "" {
		t.Error(asked, a.text)
	}
	c.do("GET", "/v1/locks?scope=pod&type=node&prefix=no&cursor="+cursor, "").want(t, 200, "")
	if asked != "{Namespace: Scope:1 Prefix:node: After:node:1a Limit:100}" {
		t.Error(asked)
	}
	asked = ""
	if a := c.do("GET", "/v1/locks?type=node&prefix=x", ""); a.text != `{"locks":[],"next_cursor":null}` || asked != "" {
		t.Error(a.text, asked)
	}
	c.do("GET", "/v1/locks?prefix=a+b%2B", "").want(t, 200, "")
	if !strings.Contains(asked, "Prefix:a b+ ") {
		t.Error(asked)
	}
}

// The own namespace may be named. Another one needs a store that shows it, and a role that may only read.
//
// Proves: threat other namespace
func TestListOfNamespaces(t *testing.T) {
	f := start(t, func(c *Config) { c.Namespace = "ours" })
	c := f.dial()
	c.do("PUT", "/v1/locks/a", "").want(t, 200, "")
	for _, path := range []string{"/v1/locks?namespace=ours", "/v1/locks?namespace=ours&scope=session"} {
		if a := c.do("GET", path, ""); !strings.Contains(a.text, `"key":"a"`) {
			t.Error(path, a.text)
		}
	}
	for _, path := range []string{"/v1/waiters?namespace=ours", "/v1/locks/a/waiters?namespace=ours"} {
		c.do("GET", path, "").want(t, 200, "")
	}
	for _, path := range []string{"/v1/locks?", "/v1/waiters?", "/v1/locks/a/waiters?"} {
		c.do("GET", path+"namespace=theirs", "").want(t, 501, "unsupported")
		for query, part := range map[string]string{"namespace=": "1 to 255", "namespace=%00": "control", "namespace=%ff": "UTF-8", "namespace=" + strings.Repeat("n", 256): "1 to 255"} {
			a := c.do("GET", path+query, "")
			a.want(t, 400, "invalid_request")
			a.detail(t, part)
		}
	}
	for _, scope := range []string{"pod", "session"} {
		c.do("GET", "/v1/locks?namespace=theirs&scope="+scope, "").want(t, 400, "invalid_request")
	}
	for _, path := range []string{"/v1/locks/a", "/v1/locks/a/events"} {
		c.do("GET", path+"?namespace=theirs", "").want(t, 400, "invalid_request")
	}
}

func TestJoinedSession(t *testing.T) {
	f := start(t)
	e, id := f.explicit()
	c := f.dial()
	c.do("PUT", "/v1/locks/a", "", "Lock-Session: "+id).want(t, 200, "")
	if a := c.do("GET", "/v1/locks/a", "", "Lock-Session: "+id); a.json["mine"] != true {
		t.Error(a.text)
	}
	if a := c.do("GET", "/v1/locks/a", ""); a.json["mine"] != false {
		t.Error(a.text)
	}
	c.do("DELETE", "/v1/locks/a?token=1", "").want(t, 409, "not_holder")
	c.do("GET", "/v1/locks/a", "", "Lock-Session: nobody").want(t, 410, "session_ended")
	a := c.do("PUT", "/v1/locks/b", "", "Lock-Session: ")
	a.want(t, 400, "invalid_request")
	a.detail(t, "Lock-Session")

	a = c.do("DELETE", "/v1/sessions/"+id, "")
	a.want(t, 200, "")
	if reason := await.Receive(t, f.locks.ended, "the session's end"); reason != lease.EndDeleted {
		t.Error(reason)
	}
	if name, _ := e.next(); name != "" {
		t.Errorf("event %q instead of the end", name)
	}
	c.do("DELETE", "/v1/sessions/"+id, "").want(t, 410, "session_ended")
	if a := c.do("GET", "/v1/locks/a", ""); a.json["state"] != "free" {
		t.Error(a.text)
	}
}

// Proves: threat admin listener
func TestHealth(t *testing.T) {
	facts := map[string]string{}
	f := start(t, func(c *Config) { c.AdminAddr = "127.0.0.1:0"; c.Details = func() map[string]string { return facts } })
	c, admin := f.dial(), func() *client { return dialTo(t, "tcp", f.AdminAddr().String()) }
	for _, dial := range []func() *client{f.dial, admin} {
		dial().do("GET", "/healthz", "").want(t, 200, "")
		dial().do("GET", "/readyz", "").want(t, 200, "")
		dial().do("GET", "/metrics", "").want(t, 404, "not_found")
		a := dial().do("POST", "/healthz", "")
		a.want(t, 405, "method_not_allowed")
		if a.Header.Get("Allow") != methodsGet {
			t.Error(a.Header)
		}
	}
	facts["kept"], facts["a"] = "in \"memory\"", "1"
	if a := c.do("GET", "/readyz", ""); a.text != `{"status":"ready","store":{"a":"1","kept":"in \"memory\""}}` {
		t.Error(a.text)
	}
	if a := admin().do("GET", "/readyz", ""); a.text != `{"status":"ready","store":{}}` {
		t.Error(a.text)
	}
	admin().do("GET", "/v1", "").want(t, 404, "not_found")
	admin().do("GET", "/", "").want(t, 404, "not_found")
	admin().do("PUT", "/v1/locks/a", "").want(t, 404, "not_found")

	down := error(&store.Error{Op: "Ready", Err: errors.New("no connection")})
	f.locks.ready.Store(&down)
	a := c.do("GET", "/readyz", "")
	a.want(t, 503, "store_unavailable")
	a.detail(t, "no connection")
	// The network is not told of hosts and users.
	if a := admin().do("GET", "/readyz", ""); a.StatusCode != 503 || strings.Contains(a.text, "no connection") {
		t.Error(a.text)
	}
	c.do("GET", "/healthz", "").want(t, 200, "")
	down = errors.New("not yet connected")
	c.do("GET", "/readyz", "").want(t, 503, "store_unavailable")
	if a := admin().do("GET", "/readyz", ""); a.StatusCode != 503 || strings.Contains(a.text, "yet") {
		t.Error(a.text)
	}
	drain := lease.ErrDraining
	f.locks.ready.Store(&drain)
	c.do("GET", "/readyz", "").want(t, 503, "draining")
}

func TestAbout(t *testing.T) {
	ours := func(c *Config) { c.Namespace = "shop" }
	f := start(t, ours)
	a := f.dial().do("GET", "/v1", "")
	const before = `{"version":"1.2.3","api":"v1","namespace":"shop","features":["wait","bind_ttl","data","request_id","sessions","list",` +
		`"reentrant","outcome","hold","stop","events","several_keys","stats","release_by_id","shared","waiters"`
	if a.text != before+"]}" {
		t.Error(a.text)
	}
	f = start(t, ours, func(c *Config) { c.AllowForce = true })
	if a := f.dial().do("GET", "/v1", ""); a.text != before+`,"force"]}` {
		t.Error(a.text)
	}
	var shows atomic.Bool // the store learns it later
	f = start(t, ours, func(c *Config) { c.Namespaces = shows.Load })
	c := f.dial()
	for range 2 {
		if a := c.do("GET", "/v1", ""); a.text != before+map[bool]string{true: `,"namespaces"`}[shows.Load()]+"]}" {
			t.Error(a.text)
		}
		shows.Store(true)
	}
}

func TestPanicEndsTheConnectionOnly(t *testing.T) {
	f := start(t)
	other := f.dial()
	other.do("PUT", "/v1/locks/other", "").want(t, 200, "")
	c := f.dial()
	c.do("PUT", "/v1/locks/mine", "").want(t, 200, "")
	f.locks.hook = func(op, _ string) error {
		if op == "get" {
			panic("a bug")
		}
		return nil
	}
	c.do("GET", "/v1/locks/mine", "").want(t, 500, "internal")
	c.wantEnd()
	await.Receive(t, f.locks.ended, "the session's end")
	other.do("DELETE", "/v1/locks/other?token=1", "").want(t, 200, "")
	if !strings.Contains(f.log.text(), "a bug") {
		t.Error("the panic is not logged")
	}
}

func TestPageIsNotOverwrittenByTheNextCall(t *testing.T) {
	f := start(t)
	c := f.dial()
	const n = 50
	var pipeline strings.Builder
	for i := range n {
		pipeline.WriteString(requestText("PUT", fmt.Sprintf("/v1/locks/k%d", i), `{"data":"x"}`))
	}
	c.send(pipeline.String())
	for i := range n {
		if a := c.read(); a.json["key"] != fmt.Sprintf("k%d", i) {
			t.Fatal(a.text)
		}
	}
}
