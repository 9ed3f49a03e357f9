package proxy

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/lease"
)

const semaphore = `{"mode":"shared","limit":2}`

// The members of a shared grant, of its key, and of what refuses more holders.
func TestSharedLock(t *testing.T) {
	f, _ := withManager(t)
	a, b := f.dial(), f.dial()
	one := a.do("PUT", "/v1/locks/k", semaphore)
	one.want(t, 200, "")
	if one.json["mode"] != "shared" || one.json["limit"] != 2.0 || one.json["slot"] != 0.0 {
		t.Error(one.text)
	}
	two := b.do("PUT", "/v1/locks/k", semaphore)
	if two.json["slot"] != 1.0 {
		t.Error(two.text)
	}
	full := f.dial().do("PUT", "/v1/locks/k", semaphore)
	full.want(t, 423, "held")
	if full.json["mode"] != "shared" || full.json["limit"] != 2.0 || full.json["holders_count"] != 2.0 || full.json["holder"] == nil {
		t.Error(full.text)
	}
	late := f.dial().do("PUT", "/v1/locks/k", `{"mode":"shared","limit":2,"wait_ms":1}`)
	late.want(t, 423, "wait_timeout")
	if late.json["mode"] != "shared" || late.json["holders_count"] != 2.0 {
		t.Error(late.text)
	}
	for body, limit := range map[string]any{`{"mode":"shared"}`: 2.0, `{"mode":"shared","limit":3}`: 2.0} {
		other := f.dial().do("PUT", "/v1/locks/k", body)
		other.want(t, 409, "limit_mismatch")
		if other.json["limit"] != limit {
			t.Error(other.text)
		}
	}
	several := f.dial().do("POST", "/v1/locks", `{"keys":["a","k"],"mode":"shared"}`)
	several.want(t, 409, "limit_mismatch")
	if several.json["key"] != "k" {
		t.Error(several.text)
	}
	seen := b.do("GET", "/v1/locks/k", "")
	seen.want(t, 200, "")
	holders := seen.json["holders"].([]any)
	if seen.json["mode"] != "shared" || seen.json["holders_count"] != 2.0 || seen.json["token"] != two.json["token"] || len(holders) != 2 {
		t.Fatal(seen.text)
	}
	if h := holders[1].(map[string]any); h["token"] != two.json["token"] || h["slot"] != 1.0 || h["session"] != two.json["session"] {
		t.Error(seen.text)
	}
	amended := a.do("PATCH", "/v1/locks/k", fmt.Sprintf(`{"token":%s,"mode":"shared"}`, tokenOf(one)))
	amended.want(t, 200, "")
	if amended.json["slot"] != 0.0 || amended.json["mode"] != "shared" {
		t.Error(amended.text)
	}
	a.do("DELETE", fmt.Sprintf("/v1/locks/k?token=%s&outcome=success", tokenOf(one)), "").want(t, 400, "invalid_request")
	a.do("DELETE", fmt.Sprintf("/v1/locks/k?token=%s", tokenOf(one)), "").want(t, 200, "")
	b.do("POST", "/v1/locks/k/release", fmt.Sprintf(`{"token":%s}`, tokenOf(two))).want(t, 200, "")
	if free := a.do("GET", "/v1/locks/k", ""); free.json["mode"] != nil || free.json["holders_count"] != 0.0 {
		t.Error(free.text)
	}
}

// A share cannot become exclusive: the answers say what to do.
func TestNoUpgrade(t *testing.T) {
	f, _ := withManager(t)
	c := f.dial()
	g := c.do("PUT", "/v1/locks/k", `{"mode":"shared"}`)
	for _, a := range []answer{
		c.do("PUT", "/v1/locks/k", `{"wait_ms":-1}`),
		c.do("PATCH", "/v1/locks/k", fmt.Sprintf(`{"token":%s,"mode":"exclusive"}`, tokenOf(g))),
	} {
		a.want(t, 400, "invalid_request")
		a.detail(t, "release it and acquire")
	}
	c.do("PUT", "/v1/locks/x", "").want(t, 200, "")
	for _, own := range []answer{
		c.do("PUT", "/v1/locks/x", `{"wait_ms":-1}`), c.do("POST", "/v1/locks", `{"keys":["a","x"],"wait_ms":-1}`),
	} {
		own.want(t, 400, "invalid_request")
		own.detail(t, `"x" is held by this session`)
	}
}

// A lock becomes shared, and an entered one does not.
func TestDowngradeByPatch(t *testing.T) {
	f, _ := withManager(t)
	c := f.dial()
	g := c.do("PUT", "/v1/locks/k", `{"owner":"o","reentrant":true}`)
	c.do("PUT", "/v1/locks/k", `{"owner":"o","reentrant":true}`).want(t, 200, "")
	patch := fmt.Sprintf(`{"token":%s,"mode":"shared","data":[1]}`, tokenOf(g))
	entered := c.do("PATCH", "/v1/locks/k", patch)
	entered.want(t, 400, "invalid_request")
	entered.detail(t, "mode", "2 times")
	c.do("DELETE", fmt.Sprintf("/v1/locks/k?token=%s", tokenOf(g)), "").want(t, 200, "")
	if a := c.do("PATCH", "/v1/locks/k", patch); a.json["mode"] != "shared" || a.json["token"] != g.json["token"] {
		t.Error(a.text)
	}
	f.dial().do("PUT", "/v1/locks/k", `{"mode":"shared"}`).want(t, 200, "")
	if a := c.do("GET", "/v1/locks/k", ""); a.json["holders_count"] != 2.0 || !strings.Contains(a.text, `"data":[1]`) {
		t.Error(a.text)
	}
}

// With a token, a request to stop and a break mean one of the holders.
func TestStopAndForceWithToken(t *testing.T) {
	f, _ := withManager(t, func(c *Config) { c.AllowForce = true })
	e, id := f.explicit()
	c, joined := f.dial(), "Lock-Session: "+id
	one := c.do("PUT", "/v1/locks/k", `{"mode":"shared"}`, joined)
	two := c.do("PUT", "/v1/locks/k", `{"mode":"shared"}`, joined)
	other := f.dial()
	other.do("POST", fmt.Sprintf("/v1/locks/k/stop?token=%s", tokenOf(two)), `{"reason":"you"}`).want(t, 202, "")
	if told := e.eventNamed("stop"); told["token"] != two.json["token"] {
		t.Error(told)
	}
	const unknown = "12345"
	other.do("POST", fmt.Sprintf("/v1/locks/k/stop?token=%s", unknown), "").want(t, 404, "not_held")
	other.do("POST", "/v1/locks/k/stop?token=x", "").want(t, 400, "invalid_request")
	other.do("DELETE", fmt.Sprintf("/v1/locks/k?force=true&token=%s", unknown), "").want(t, 404, "not_held")
	other.do("DELETE", fmt.Sprintf("/v1/locks/k?force=true&token=%s", tokenOf(one)), "").want(t, 200, "")
	if lost := e.eventNamed("lost"); lost["token"] != one.json["token"] || lost["reason"] != "forced" {
		t.Error(lost)
	}
	if a := other.do("GET", "/v1/locks/k", ""); a.json["holders_count"] != 1.0 {
		t.Error(a.text)
	}
	other.do("DELETE", "/v1/locks/k?force=true", "").want(t, 200, "")
	if lost := e.eventNamed("lost"); lost["token"] != two.json["token"] {
		t.Error(lost)
	}
}

// Waiting calls are listed for a key and for all, in pages.
func TestWaiters(t *testing.T) {
	f, m := withManager(t)
	c := f.dial()
	c.do("PUT", "/v1/locks/a%2Fb", "").want(t, 200, "")
	c.do("PUT", "/v1/locks/z", "").want(t, 200, "")
	for _, r := range []lease.Request{
		{Key: "a/b", Owner: "o"}, {Key: "a/b", Shared: true, Limit: 7}, {Key: "z", Bind: lease.BindTTL, TTL: time.Minute},
	} {
		r.Wait = lease.WaitForever
		s, err := m.OpenSession(lease.SessionOptions{Name: "waits"})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		over := make(chan struct{})
		go func() {
			defer close(over)
			_, _ = m.Acquire(ctx, s, r)
		}()
		t.Cleanup(func() {
			cancel()
			<-over
		})
		for queued := false; !queued; { // the first is before the second
			page, err := m.Waiters(ctx, lease.WaitersRequest{Key: r.Key, Limit: 10})
			if err != nil {
				t.Fatal(err)
			}
			last := len(page.Waiting) - 1
			queued = last >= 0 && page.Waiting[last].Shared == r.Shared
		}
	}
	all := c.do("GET", "/v1/waiters", "")
	all.want(t, 200, "")
	if n := len(all.json["waiters"].([]any)); n != 3 || all.json["next_cursor"] != nil {
		t.Error(all.text)
	}
	page := c.do("GET", "/v1/waiters?limit=2", "")
	page.want(t, 200, "")
	two := page.json["waiters"].([]any)
	first, second := two[0].(map[string]any), two[1].(map[string]any)
	if first["key"] != "a/b" || first["position"] != 1.0 || first["mode"] != "exclusive" || first["limit"] != nil ||
		first["pod"] != "pod-1" || first["session"] != "waits" || first["owner"] != "o" {
		t.Error(page.text)
	}
	if second["mode"] != "shared" || second["limit"] != 7.0 || second["position"] != 2.0 {
		t.Error(page.text)
	}
	rest := c.do("GET", "/v1/waiters?limit=2&cursor="+page.json["next_cursor"].(string), "")
	if left := rest.json["waiters"].([]any); len(left) != 1 || left[0].(map[string]any)["key"] != "z" || left[0].(map[string]any)["session"] != nil {
		t.Error(rest.text)
	}
	if a := c.do("GET", "/v1/waiters?prefix=z", ""); len(a.json["waiters"].([]any)) != 1 {
		t.Error(a.text)
	}
	if a := c.do("GET", "/v1/locks/a%2Fb/waiters", ""); len(a.json["waiters"].([]any)) != 2 {
		t.Error(a.text)
	}
	for _, target := range []string{
		"/v1/waiters?limit=1001", "/v1/waiters?cursor=x", "/v1/waiters?cursor=eA", "/v1/waiters?type=a", "/v1/locks/z/waiters?prefix=z",
	} {
		c.do("GET", target, "").want(t, 400, "invalid_request")
	}
	c.do("POST", "/v1/waiters", "").want(t, 405, "method_not_allowed")
}
