package proxy

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testing/await"
	"github.com/locksidecar/locksidecar/lease"
	"github.com/locksidecar/locksidecar/proxy/internal/wire"
	"github.com/locksidecar/locksidecar/store"
)

// watch opens the event stream of a key and reads its state.
func (f *fixture) watch(key string, headers ...string) (*events, map[string]any) {
	f.t.Helper()
	c := f.dial()
	c.request("GET", "/v1/locks/"+key+"/events", "", headers...)
	e := c.events()
	name, data := e.next()
	if name != "state" {
		f.t.Fatalf("first event is %q", name)
	}
	return e, data
}

// want checks the next event of a stream.
func (e *events) want(name string, data map[string]any) {
	e.t.Helper()
	gotName, got := e.next()
	if gotName != name || !reflect.DeepEqual(got, data) {
		e.t.Fatalf("got %s %v, want %s %v", gotName, got, name, data)
	}
}

// Proves: threat control characters
func TestKeyEvents(t *testing.T) {
	f := start(t)
	e, state := f.watch("a%2Fb")
	want := map[string]any{
		"key": "a/b", "type": "", "state": "free", "mine": false, "token": nil, "mode": nil, "limit": nil,
		"holders_count": 0.0, "holder": nil, "kept": false, "holders": []any{}, "queue_length": 0.0, "cached": false, "stopping": nil,
	}
	if !reflect.DeepEqual(state, want) || e.comments == 0 {
		t.Error(state, e.comments)
	}
	at := time.Date(2026, 1, 2, 3, 4, 5, 6000, time.FixedZone("", 3600))
	reason := "a\nb"
	lock := store.Lock{Key: "a/b", Held: true, Token: 7, Holder: store.Holder{Pod: "p", AcquiredAt: at}}
	share := lock
	share.Shared, share.Limit, share.Holders = true, 3, []store.Share{{Token: 7, Slot: 2, Holder: lock.Holder}}
	for _, event := range []lease.Event{
		{Kind: store.EventAcquired, Lock: lock},
		{Kind: store.EventAcquired, Lock: share},
		{Kind: store.EventAcquired},
		{Kind: 99},
		{Kind: store.EventReleased},
		{Kind: store.EventReleased, Outcome: store.Failure},
		{Kind: store.EventReleased, Outcome: store.Success, Result: []byte(`{"n":1}`)},
		{Kind: store.EventExpired},
		{Kind: store.EventStopping, Stopping: &store.Stopping{At: at}},
		{Kind: store.EventStopping, Stopping: &store.Stopping{At: at, Reason: &reason}},
	} {
		event.Key, event.Token = "a/b", 7
		f.locks.happen(event)
	}
	name, data := e.next()
	holder := answer{json: data["holder"].(map[string]any)}
	members(t, holder, "instance", "pod", "session", "owner", "acquired_at", "held_ms", "expires_in_ms", "data", "traceparent")
	if name != "acquired" || len(data) != 6 || holder.json["pod"] != "p" || data["mode"] != "exclusive" || data["slot"] != nil {
		t.Error(name, data)
	}
	if name, data = e.next(); name != "acquired" || data["mode"] != "shared" || data["limit"] != 3.0 || data["slot"] != 2.0 {
		t.Error(name, data)
	}
	e.want("acquired", map[string]any{"key": "a/b", "token": 7.0, "mode": nil, "limit": nil, "slot": nil, "holder": nil})
	e.want("released", map[string]any{"key": "a/b", "token": 7.0, "outcome": nil, "result": nil})
	e.want("released", map[string]any{"key": "a/b", "token": 7.0, "outcome": "failure", "result": nil})
	e.want("released", map[string]any{"key": "a/b", "token": 7.0, "outcome": "success", "result": map[string]any{"n": 1.0}})
	e.want("expired", map[string]any{"key": "a/b", "token": 7.0})
	e.want("stopping", map[string]any{"key": "a/b", "token": 7.0, "reason": nil, "requested_at": "2026-01-02T02:04:05.000006Z"})
	e.want("stopping", map[string]any{"key": "a/b", "token": 7.0, "reason": reason, "requested_at": "2026-01-02T02:04:05.000006Z"})
}

// The state is seen by the session that asks: the one named, or the connection's own.
func TestKeyEventsOfASession(t *testing.T) {
	f := start(t)
	_, id := f.explicit()
	f.dial().do("PUT", "/v1/locks/a", "", "Lock-Session: "+id).want(t, 200, "")
	if _, state := f.watch("a", "Lock-Session: "+id); state["mine"] != true || state["token"] != 1.0 {
		t.Error(state)
	}
	if _, state := f.watch("a"); state["mine"] != false || state["token"] != nil {
		t.Error(state)
	}
	c := f.dial()
	c.do("PUT", "/v1/locks/b", "").want(t, 200, "")
	c.request("GET", "/v1/locks/b/events", "")
	if name, state := c.events().next(); name != "state" || state["mine"] != true {
		t.Error(name, state)
	}
}

// The first event is the state, even if other events come before the watch is ready.
// Proves: promise 16
func TestStateComesFirst(t *testing.T) {
	f := start(t, func(c *Config) { c.Timeouts.Subscribe = time.Millisecond })
	begun, goOn := make(chan struct{}), make(chan struct{})
	f.locks.hook = func(op, _ string) error {
		if op == "watch" {
			close(begun)
			<-goOn
		}
		return nil
	}
	c := f.dial()
	c.request("GET", "/v1/locks/a/events", "")
	e := c.events() // the head does not wait for the store
	await.Receive(t, begun, "the watch")
	const several = maxKeyEvents / 2 // more than are written at once
	for i := range several {
		f.locks.happen(lease.Event{Kind: store.EventReleased, Key: "a", Token: 7, Result: fmt.Append(nil, i)})
	}
	if line, err := e.body.ReadString('\n'); line != ":\n" || err != nil {
		t.Errorf("%q, %v", line, err)
	}
	close(goOn)
	if name, _ := e.next(); name != "state" {
		t.Error(name)
	}
	for i := range several {
		e.want("released", map[string]any{"key": "a", "token": 7.0, "outcome": nil, "result": float64(i)})
	}
}

func TestInvalidKeyEvents(t *testing.T) {
	f := start(t, func(c *Config) { c.Timeouts.Subscribe = time.Hour })
	c := f.dial()
	c.do("GET", "/v1/locks/a/events", `{"since":1}`).want(t, 400, "invalid_request")
	c.do("GET", "/v1/locks/a/events", "", "Lock-Session: nobody").want(t, 410, "session_ended")
	for code, err := range map[string]error{
		"429 limit":             &lease.LimitError{What: "watches", Limit: 1},
		"503 draining":          lease.ErrDraining,
		"503 store_unavailable": &store.Error{Op: "Watch", Err: errors.New("away")},
		"500 internal":          errors.New("strange"),
	} {
		f.locks.hook = func(string, string) error { return err }
		a := c.do("GET", "/v1/locks/a/events", "")
		if got := fmt.Sprint(a.StatusCode, " ", a.json["code"]); got != code {
			t.Errorf("%s: %s", code, a.text)
		}
	}
	if log := f.log.text(); !strings.Contains(log, "strange") {
		t.Error(log)
	}
	c.send("GET /v1/locks/a/events HTTP/1.0\r\n\r\n")
	c.read().want(t, 400, "invalid_request")
	if f.locks.watches() != 0 {
		t.Error("a refused call watches")
	}
}

// A bug in the watch ends neither the sidecar nor the connection.
func TestPanicInAWatch(t *testing.T) {
	f := start(t, func(c *Config) { c.Timeouts.Subscribe = time.Hour })
	f.Server.locks = watchPanics{f.locks}
	c := f.dial()
	c.do("GET", "/v1/locks/a/events", "").want(t, 500, "internal")
	c.do("GET", "/v1", "").want(t, 200, "")
	if log := f.log.text(); !strings.Contains(log, "a bug") {
		t.Error(log)
	}
}

// If the watch fails after the head was sent, an event says why, and the stream ends.
func TestKeyEventsFailLate(t *testing.T) {
	for code, err := range map[string]error{
		"store_unavailable": &store.Error{Op: "Watch", Err: errors.New("away")},
		"limit":             &lease.LimitError{What: "watches", Limit: 1},
		"internal":          errors.New("strange"),
	} {
		f := start(t, func(c *Config) { c.Timeouts.Subscribe = time.Millisecond })
		fail := make(chan struct{})
		f.locks.hook = func(string, string) error {
			<-fail
			return err
		}
		c := f.dial()
		c.request("GET", "/v1/locks/a/events", "")
		e := c.events()
		close(fail)
		name, data := e.next()
		if name != "problem" || data["code"] != code || data["type"] != wire.ProblemTypes+code || data["detail"] == "" {
			t.Error(name, data)
		}
		if name, _ := e.next(); name != "" {
			t.Error(name)
		}
		e.wantEnd()
		await.Silent(t, f.locks.unwatched, "end of a watch")
	}
}

// A client that goes is noticed at once, and its watch ends; so does what else it had.
// Proves: trap unseen disconnect
func TestDisconnectOfAKeyStream(t *testing.T) {
	for how, leave := range closes {
		t.Run(how, func(t *testing.T) {
			f := start(t)
			c := f.dial()
			c.do("PUT", "/v1/locks/mine", "").want(t, 200, "")
			c.request("GET", "/v1/locks/a/events", "")
			await.Receive(t, f.locks.watching, "the watch")
			c.events().next()
			await.Silent(t, f.locks.unwatched, "end of a watch")
			leave(c)
			await.Receive(t, f.locks.unwatched, "the end of the watch")
			await.Receive(t, f.locks.ended, "the session's end")
			if strings.Contains(f.log.text(), "too slow") {
				t.Error(f.log.text())
			}
		})
	}
}

// A client that goes before the watch stands leaves nothing behind.
func TestDisconnectBeforeSubscription(t *testing.T) {
	for how, leave := range closes {
		t.Run(how, func(t *testing.T) {
			f := start(t, func(c *Config) { c.Timeouts.Subscribe = time.Millisecond })
			never := make(chan struct{})
			defer close(never)
			f.locks.hook = func(string, string) error { <-never; return nil }
			c := f.dial()
			c.request("GET", "/v1/locks/a/events", "")
			c.events()
			leave(c)
			await.Until(t, "nobody watches", func() bool { return f.locks.watches() == 0 })
		})
	}
}

func TestSlowReaderOfAKeyIsDropped(t *testing.T) {
	// By its full queue: a deadline could be missed by the other reader as well, where the machine is busy.
	f := start(t, func(c *Config) { c.Timeouts.StreamWrite = time.Hour })
	f.watch("a")
	fast, _ := f.watch("a")
	event := lease.Event{Kind: store.EventReleased, Key: "a", Token: 7, Result: []byte(`"` + strings.Repeat("r", 4000) + `"`)}
	for range 2 * maxKeyEvents { // 8 MB: never blocks
		f.locks.happen(event)
		if name, _ := fast.next(); name != "released" {
			t.Fatal(name)
		}
	}
	await.Receive(t, f.locks.unwatched, "the end of the watch")
	await.Silent(t, f.locks.unwatched, "end of the other watch")
}

// The queue of a key's stream is bounded, whatever the reader's deadline.
// Proves: threat flood
func TestKeyStreamQueueIsBounded(t *testing.T) {
	f := start(t, func(c *Config) { c.Timeouts.StreamWrite = time.Hour })
	f.watch("a")
	event := lease.Event{Kind: store.EventReleased, Key: "a", Token: 7, Result: []byte(`"` + strings.Repeat("r", 4000) + `"`)}
	for range 3 * maxKeyEvents {
		f.locks.happen(event)
	}
	await.Receive(t, f.locks.unwatched, "the end of the watch")
}

// When the sidecar stops, the streams of keys end properly, also those of which the
// watch does not stand.
func TestStopEndsKeyStreams(t *testing.T) {
	f := start(t, func(c *Config) { c.Timeouts.Stop, c.Timeouts.Subscribe = time.Hour, time.Millisecond })
	standing, _ := f.watch("a")
	never := make(chan struct{})
	defer close(never)
	f.locks.hook = func(string, string) error { <-never; return nil }
	c := f.dial()
	c.request("GET", "/v1/locks/b/events", "")
	pending := c.events()
	f.locks.happen(lease.Event{Kind: store.EventExpired, Key: "a", Token: 7})
	f.Stop()
	standing.want("expired", map[string]any{"key": "a", "token": 7.0})
	for _, e := range []*events{standing, pending} {
		if name, _ := e.next(); name != "" {
			t.Error(name)
		}
		e.wantEnd()
	}
	await.Receive(t, f.locks.unwatched, "the end of the watch")
	if f.locks.watches() != 0 {
		t.Error("it is still watched")
	}
}

func TestKeyStreamHeartbeat(t *testing.T) {
	f := start(t, func(c *Config) { c.Timeouts.Heartbeat = 5 * time.Millisecond })
	e, _ := f.watch("a")
	for before := e.comments; e.comments < before+3; {
		line, err := e.body.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(line, ":") {
			e.comments++
		}
	}
}
