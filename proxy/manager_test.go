package proxy

import (
	"context"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/internal/testing/await"
	"github.com/locksidecar/locksidecar/lease"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/memory"
)

// withManager starts a server with the real lock manager and an embedded store.
func withManager(t *testing.T, change ...func(*Config)) (*fixture, *lease.Manager) {
	t.Helper()
	return withManagerOn(t, memory.NewSpace().Open(store.Identity{Namespace: "test", Instance: "pod-1/1", Pod: "pod-1"}), change...)
}

func withManagerOn(t *testing.T, st store.Store, change ...func(*Config)) (*fixture, *lease.Manager) {
	t.Helper()
	m := newManager(t, st)
	f := &fixture{t: t, log: &logs{}}
	cfg := testConfig(m, slog.New(slog.NewTextHandler(f.log, nil)), filepath.Join(tempDir(t), "s"))
	for _, c := range change {
		c(&cfg)
	}
	f.Server = New(cfg)
	if err := f.Start(context.Background()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Stop) // before the manager's, as in a sidecar
	return f, m
}

// eventNamed reads events until one has this name.
func (e *events) eventNamed(name string) map[string]any {
	e.t.Helper()
	for {
		got, data := e.next()
		if got == name {
			return data
		}
		if got == "" {
			e.t.Fatalf("the stream ends without %s", name)
		}
	}
}

func TestRequestIDs(t *testing.T) {
	f, _ := withManager(t)
	_, id := f.explicit()
	c, joined := f.dial(), "Lock-Session: "+id
	const body = `{"wait_ms":-1,"request_id":"f81d4fae-7dec-41d0-a765-00a0c91e6bf6"}`
	const target = "/v1/locks/a?request_id=F81D4FAE-7dec-41d0-a765-00a0c91e6bf6"
	first := c.do("PUT", "/v1/locks/a", body, joined)
	if again := f.dial().do("PUT", "/v1/locks/a", body, joined); again.json["reentry"] != 1.0 || tokenOf(again) != tokenOf(first) {
		t.Error(first.text, again.text)
	}
	stranger := f.dial() // its session is its own
	stranger.request("PUT", "/v1/locks/a", body)
	await.Until(t, "the call waits", func() bool {
		return c.do("GET", "/v1/locks/a", "", "Cache-Control: no-cache").json["queue_length"] == 1.0
	})
	if a := f.dial().do("DELETE", target, ""); a.StatusCode != 200 || a.text != `{"key":"a","released":false,"reentry":0,"held_ms":0}` {
		t.Error(a.text)
	}
	if a := c.do("DELETE", target, "", joined); a.StatusCode != 200 || a.json["released"] != true {
		t.Error(a.text)
	}
	third := stranger.read()
	third.want(t, 200, "")

	waiter := f.dial()
	waiter.request("PUT", "/v1/locks/a", body, joined)
	await.Until(t, "the call waits", func() bool {
		return c.do("GET", "/v1/locks/a", "", "Cache-Control: no-cache").json["queue_length"] == 1.0
	})
	if a := c.do("DELETE", target, "", joined); a.StatusCode != 200 || a.json["released"] != false {
		t.Error(a.text)
	}
	waiter.read().want(t, 409, "withdrawn")
	if a := stranger.do("DELETE", target+"&outcome=success", `{"result":1}`); a.StatusCode != 200 || a.json["released"] != true {
		t.Error(a.text)
	}
}

func TestCoordinationWithManager(t *testing.T) {
	f, _ := withManager(t, func(c *Config) { c.AllowForce = true })
	stream, id := f.explicit()
	c, joined := f.dial(), "Lock-Session: "+id
	const enter = `{"owner":"t1","reentrant":true}`
	first := c.do("PUT", "/v1/locks/a", enter, joined)
	if again := c.do("PUT", "/v1/locks/a", enter, joined); again.json["reentry"] != 2.0 || tokenOf(again) != tokenOf(first) {
		t.Error(first.text, again.text)
	}
	target := "/v1/locks/a?token=" + tokenOf(first)
	c.do("DELETE", target+"&reentry=3", "", joined).want(t, 409, "not_holder")
	c.do("DELETE", target+"&reentry=1", "", joined).want(t, 400, "invalid_request")
	c.do("DELETE", target+"&reentry=2", "", joined).want(t, 200, "")

	c.do("POST", "/v1/locks/a/stop", `{"reason":"why"}`).want(t, 202, "")
	if data := stream.eventNamed("stop"); data["reason"] != "why" || data["key"] != "a" {
		t.Error(data)
	}
	if a := c.do("PATCH", "/v1/locks/a", `{"token":`+tokenOf(first)+`}`, joined); a.json["stopping"] == nil || a.json["reentry"] != 1.0 {
		t.Error(a.text)
	}
	waiter := f.dial()
	if a := c.do("GET", "/v1/locks/a", "", joined); a.json["cached"] != true {
		t.Error(a.text)
	}
	if a := c.do("GET", "/v1/locks/a", "", joined, "Cache-Control: no-cache"); a.json["cached"] != false || a.json["mine"] != true {
		t.Error(a.text)
	}
	waiter.request("PUT", "/v1/locks/a", `{"wait_ms":-1,"on_success":"skip"}`)
	await.Until(t, "the call waits", func() bool {
		return c.do("GET", "/v1/locks/a", "", "Cache-Control: no-cache").json["queue_length"] == 1.0
	})
	c.do("DELETE", target+"&outcome=success", `{"result":{"n":1}}`, joined).want(t, 200, "")
	if a := waiter.read(); a.text != `{"granted":false,"key":"a","outcome":"success","result":{"n":1}}` {
		t.Error(a.text)
	}

	watch, state := f.watch("b")
	if state["state"] != "free" {
		t.Error(state)
	}
	several := c.do("POST", "/v1/locks", `{"keys":["c","b"],"owner":"t1"}`, joined)
	several.want(t, 200, "")
	f.dial().do("POST", "/v1/locks", `{"keys":["b","x"]}`).want(t, 423, "held")
	c.do("POST", "/v1/locks", `{"keys":["d","c"]}`, joined).want(t, 423, "held")
	if holder, _ := watch.eventNamed("acquired")["holder"].(map[string]any); holder["owner"] != "t1" {
		t.Error(holder)
	}
	c.do("POST", "/v1/locks/b/stop", "").want(t, 202, "")
	watch.eventNamed("stopping")
	c.do("DELETE", "/v1/locks/b?force=true", "").want(t, 200, "")
	if data := stream.eventNamed("lost"); data["key"] != "b" || data["reason"] != "forced" {
		t.Error(data)
	}
	c.do("DELETE", "/v1/locks/b?force=true", "").want(t, 404, "not_held")
	watch.eventNamed("released")
}

func TestWithManager(t *testing.T) {
	f, m := withManager(t)
	holder, waiter := f.dial(), f.dial()
	first := holder.do("PUT", "/v1/locks/a", "")
	first.want(t, 200, "")
	denied := waiter.do("PUT", "/v1/locks/a", "")
	denied.want(t, 423, "held")
	if held := denied.json["holder"].(map[string]any); held["pod"] != "pod-1" || held["session"] != first.json["session"] {
		t.Error(denied.text)
	}
	waiter.request("PUT", "/v1/locks/a", `{"wait_ms":-1}`)
	await.Until(t, "a call waits", f.callWaits)
	_ = holder.Close()
	second := waiter.read() // granted because the holder went
	second.want(t, 200, "")
	if second.json["token"].(float64) <= first.json["token"].(float64) {
		t.Error(first.text, second.text)
	}
	waiter.do("DELETE", "/v1/locks/a?token="+tokenOf(first), "").want(t, 410, "lock_lost")
	waiter.do("DELETE", "/v1/locks/a?token="+tokenOf(second), "").want(t, 200, "")
	waiter.do("DELETE", "/v1/locks/a?token="+tokenOf(second), "").want(t, 409, "not_holder")

	ttl := waiter.do("PUT", "/v1/locks/cron", `{"bind":"ttl","ttl_ms":60000}`)
	ttl.want(t, 200, "")
	f.dial().do("PATCH", "/v1/locks/cron", `{"ttl_ms":30000,"token":`+tokenOf(ttl)+`}`).want(t, 200, "")
	if a := waiter.do("GET", "/v1/locks?scope=all", ""); !strings.Contains(a.text, `"key":"cron"`) {
		t.Error(a.text)
	}

	stream, id := f.explicit()
	waiter.do("PUT", "/v1/locks/b", "", "Lock-Session: "+id).want(t, 200, "")
	waiter.do("GET", "/readyz", "").want(t, 200, "")
	m.Drain()
	waiter.do("GET", "/readyz", "").want(t, 503, "draining")
	waiter.do("PUT", "/v1/locks/c", `{"bind":"ttl"}`).want(t, 503, "draining")
	waiter.do("DELETE", "/v1/sessions/"+id, "").want(t, 200, "")
	if name, _ := stream.next(); name != "" {
		t.Error(name)
	}
}
