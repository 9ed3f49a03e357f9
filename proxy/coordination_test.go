package proxy

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/internal/testing/await"
	"github.com/locksidecar/locksidecar/lease"
	"github.com/locksidecar/locksidecar/proxy/internal/wire"
	"github.com/locksidecar/locksidecar/store"
)

func TestReentry(t *testing.T) {
	f := start(t)
	c := f.dial()
	const body = `{"owner":"t1","reentrant":true}`
	first := c.do("PUT", "/v1/locks/a", body)
	again := c.do("PUT", "/v1/locks/a", body)
	if first.json["reentry"] != 1.0 || again.json["reentry"] != 2.0 || first.json["token"] != again.json["token"] {
		t.Error(first.text, again.text)
	}
	c.do("PUT", "/v1/locks/a", `{"owner":"t2","reentrant":true}`).want(t, 423, "held")
	if a := c.do("PATCH", "/v1/locks/a", `{"token":1}`); a.json["reentry"] != 2.0 {
		t.Error(a.text)
	}
	a := c.do("DELETE", "/v1/locks/a?token=1&reentry=1", "")
	a.want(t, 400, "invalid_request")
	members(t, a, "type", "title", "status", "code", "detail", "reentry")
	a.detail(t, "reentry")
	a = c.do("DELETE", "/v1/locks/a?token=1&reentry=3", "")
	a.want(t, 409, "not_holder")
	members(t, a, "type", "title", "status", "code", "detail", "reason", "reentry")
	if a.json["reason"] != "released" || a.json["reentry"] != 2.0 {
		t.Error(a.text)
	}
	if a := c.do("DELETE", "/v1/locks/a?token=1&reentry=2", ""); !strings.HasPrefix(a.text, `{"key":"a","released":false,"reentry":1,"held_ms":`) {
		t.Error(a.text)
	}
	if a := c.do("DELETE", "/v1/locks/a?token=1", ""); !strings.HasPrefix(a.text, `{"key":"a","released":true,"reentry":0,"held_ms":`) {
		t.Error(a.text)
	}
}

func TestOutcomes(t *testing.T) {
	f := start(t)
	holder, waiter := f.dial(), f.dial()
	big := `"` + strings.Repeat("x", wire.MaxData-2) + `"`
	for _, tt := range []struct{ query, body, want string }{
		{"", "", ""},
		{"&outcome=failure", "", ""},
		{"&outcome=success", "", "null"},
		{"&outcome=success", `{"result":null}`, "null"},
		{"&outcome=success&force=false", `{"result": {"n": [1, 2]}}`, `{"n":[1,2]}`},
		{"&outcome=success", `{"result":` + big + `}`, big},
	} {
		token := tokenOf(holder.do("PUT", "/v1/locks/a", ""))
		waiter.request("PUT", "/v1/locks/a", `{"wait_ms":-1,"on_success":"skip"}`)
		await.Receive(t, f.locks.waiting, "the wait")
		holder.do("DELETE", "/v1/locks/a?token="+token+tt.query, tt.body).want(t, 200, "")
		a := waiter.read()
		a.want(t, 200, "")
		if tt.want == "" {
			waiter.do("DELETE", "/v1/locks/a?token="+tokenOf(a), "").want(t, 200, "")
			continue
		}
		if a.text != `{"granted":false,"key":"a","outcome":"success","result":`+tt.want+`}` {
			t.Errorf("%s: %s", tt.query, a.text)
		}
	}
	a := holder.do("DELETE", "/v1/locks/a?token=1&outcome=success", `{"result":`+big[1:]+`,"x":1}`)
	a.want(t, 400, "invalid_request")
	a = holder.do("DELETE", "/v1/locks/a?token=1&outcome=success", `{"result":"x`+big[1:]+`}`)
	a.want(t, 413, "too_large")
	a.detail(t, "result", "4097")
	holder.do("DELETE", "/v1/locks/a?token=1&outcome=failure&reentry=7", "")
	if r := f.locks.released; r.Outcome != store.Failure || r.Reentry != 7 || r.Token != 1 || r.Key != "a" {
		t.Errorf("%+v", r)
	}
}

func TestAskToStop(t *testing.T) {
	f := start(t)
	e, id := f.explicit()
	c := f.dial()
	c.do("POST", "/v1/locks/a%2Fb/stop", "").want(t, 404, "not_held")
	joined := "Lock-Session: " + id
	long := strings.Repeat("r", 255)
	for body, want := range map[string]any{
		"": nil, "{}": nil, `{"reason":null}`: nil, `{"reason":""}`: "", `{"reason":"a \"release\""}`: `a "release"`,
		`{"reason":"` + long + `"}`: long,
	} {
		token := tokenOf(c.do("PUT", "/v1/locks/a%2Fb", "", joined)) // a holder hears of the same reason once
		a := c.do("POST", "/v1/locks/a%2Fb/stop", body)
		a.want(t, 202, "")
		if a.text != `{"key":"a/b","requested":true}` {
			t.Error(a.text)
		}
		name, data := e.next()
		if len(data) != 3 || name != "stop" || data["key"] != "a/b" || fmt.Sprintf("%.f", data["token"]) != token || data["reason"] != want {
			t.Error(name, data)
		}
		for _, seen := range []answer{
			c.do("GET", "/v1/locks/a%2Fb", ""), c.do("PATCH", "/v1/locks/a%2Fb", `{"token":`+token+`}`, joined),
		} {
			stopping, _ := seen.json["stopping"].(map[string]any)
			if len(stopping) != 2 || stopping["reason"] != want || stopping["requested_at"] == nil {
				t.Error(seen.text)
			}
		}
		if a := c.do("GET", "/v1/locks?scope=all", ""); !strings.Contains(a.text, `"stopping":{"reason":`) {
			t.Error(a.text)
		}
		c.do("DELETE", "/v1/locks/a%2Fb?token="+token, "", joined).want(t, 200, "")
	}
	c.do("PUT", "/v1/locks/a%2Fb", "", joined).want(t, 200, "")
	for body, part := range map[string]string{
		`{"reason":7}`: "reason is a number", `{"reason":"` + long + `r"}`: "256", `{"reason":"\u0000"}`: "U+0000",
		`{"token":1}`: "token", `[]`: "array",
	} {
		a := c.do("POST", "/v1/locks/a/stop", body)
		a.want(t, 400, "invalid_request")
		a.detail(t, part)
	}
	// Losses and requests to stop come in their order.
	f.locks.options(id).OnLost(lease.Lost{Key: "z", Token: 9, Reason: lease.LostMaxHold})
	c.do("POST", "/v1/locks/a%2Fb/stop", "").want(t, 202, "")
	for _, want := range []string{"lost", "stop"} {
		if name, _ := e.next(); name != want {
			t.Errorf("%s instead of %s", name, want)
		}
	}
}

// A client that asks to stop and goes has asked.
func TestAskToStopIsCarriedOut(t *testing.T) {
	f := start(t)
	f.locks.take(t, "a")
	begun, goOn := make(chan struct{}), make(chan struct{})
	f.locks.hook = func(string, string) error {
		close(begun)
		<-goOn
		return nil
	}
	c := f.dial()
	c.request("POST", "/v1/locks/a/stop", "")
	await.Receive(t, begun, "the call")
	_ = c.Close()
	await.Until(t, "the close is seen", f.callerLeft)
	close(goOn)
	f.allClosed()
	if f.locks.view(t, "a").Stopping == nil {
		t.Error("nobody was asked")
	}
}

func TestForce(t *testing.T) {
	f := start(t)
	f.locks.take(t, "a")
	a := f.dial().do("DELETE", "/v1/locks/a?force=true", "")
	a.want(t, 403, "forbidden")
	a.detail(t, "LOCKSIDECAR_ALLOW_FORCE")
	if !f.locks.holds(t, "a") {
		t.Fatal("broken all the same")
	}

	f = start(t, func(c *Config) { c.AllowForce = true })
	e, id := f.explicit()
	c := f.dial()
	c.do("DELETE", "/v1/locks/a?force=true", "").want(t, 404, "not_held")
	c.do("PUT", "/v1/locks/a", `{"owner":"me"}`, "Lock-Session: "+id).want(t, 200, "")
	a = c.do("DELETE", "/v1/locks/a?force=true", "")
	a.want(t, 200, "")
	members(t, a, "key", "released", "reentry", "held_ms")
	if a.json["key"] != "a" || a.json["released"] != true || a.json["reentry"] != 0.0 {
		t.Error(a.text)
	}
	if name, data := e.next(); name != "lost" || data["reason"] != "forced" {
		t.Error(name, data)
	}
	log := f.log.text()
	for _, part := range []string{"level=WARN", "a lock is being broken", "key=a", "token=1", "owner=me", "by.uid=", "by.pid="} {
		if !strings.Contains(log, part) {
			t.Errorf("the log does not say %q: %s", part, log)
		}
	}
	// A token means one grant: another one keeps its lock.
	taken := f.locks.take(t, "a")
	a = c.do("DELETE", "/v1/locks/a?force=true&token=999", "")
	a.want(t, 404, "not_held")
	a.detail(t, "999")
	if !f.locks.holds(t, "a") {
		t.Error("another grant was broken")
	}
	c.do("DELETE", fmt.Sprintf("/v1/locks/a?force=true&token=%d", taken.Token), "").want(t, 200, "")
	f.locks.take(t, "a")
	f.locks.hook = func(op, _ string) error {
		if op == "get" {
			return nil
		}
		return &store.Error{Op: "Signal", Err: errors.New("away")}
	}
	c.do("DELETE", "/v1/locks/a?force=true", "").want(t, 503, "store_unavailable")
}

// Over TCP nobody knows who asks; the log does not say that it was root.
func TestForceOverTCP(t *testing.T) {
	f := start(t, func(c *Config) { c.AllowForce, c.TCPAddr = true, "127.0.0.1:0" })
	f.locks.take(t, "a")
	dialTo(t, "tcp", f.TCPAddr().String()).do("DELETE", "/v1/locks/a?force=true", "").want(t, 200, "")
	if log := f.log.text(); !strings.Contains(log, "by=unknown") {
		t.Error(log)
	}
}

// A caller that waits until a lock is broken may leave.
func TestForceEndsWithItsConnection(t *testing.T) {
	for how, leave := range closes {
		t.Run(how, func(t *testing.T) {
			f := start(t, func(c *Config) { c.AllowForce = true })
			f.locks.take(t, "a")
			begun, over := make(chan struct{}), make(chan struct{})
			f.Server.locks = breakSlowly{f.locks, begun, over}
			c := f.dial()
			c.request("DELETE", "/v1/locks/a?force=true", "")
			await.Receive(t, begun, "the call")
			leave(c)
			await.Receive(t, over, "the end of the call")
		})
	}
}
