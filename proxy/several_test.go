package proxy

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testing/await"
	"github.com/locksidecar/locksidecar/proxy/internal/wire"
)

func TestSeveralKeys(t *testing.T) {
	f := start(t)
	c := f.dial()
	a := c.do("POST", "/v1/locks", `{"keys":["b","a/ä"],"data":[1],"owner":"me","on_success":"acquire","reentrant":false}`)
	a.want(t, 200, "")
	members(t, a, "locks")
	locks := a.json["locks"].([]any)
	if len(locks) != 2 {
		t.Fatal(a.text)
	}
	for i, key := range []string{"b", "a/ä"} {
		g := answer{json: locks[i].(map[string]any)}
		members(t, g, "granted", "key", "token", "session", "bind", "reentry", "expires_in_ms", "waited_ms", "acquired_at", "mode", "limit", "slot")
		if g.json["key"] != key || g.json["granted"] != true || g.json["reentry"] != 1.0 {
			t.Error(a.text)
		}
	}
	if f.locks.sessions() != 1 || f.locks.last.Owner != "me" || string(f.locks.last.Data) != "[1]" {
		t.Errorf("%+v", f.locks.last)
	}

	a = f.dial().do("POST", "/v1/locks", `{"keys":["x","a/ä"]}`)
	a.want(t, 423, "held")
	members(t, a, "type", "title", "status", "code", "detail", "key", "mode", "limit", "holders_count", "holder", "kept", "queue_length", "cached", "reason", "quiet_ms")
	if a.json["key"] != "a/ä" {
		t.Error(a.text)
	}
	a = f.dial().do("POST", "/v1/locks", `{"keys":["x","b"],"wait_ms":5}`, "Cache-Control: no-cache")
	a.want(t, 423, "wait_timeout")
	if a.json["key"] != "b" || a.json["queue_position"] == nil {
		t.Error(a.text)
	}

	const id = "f81d4fae-7dec-11d0-a765-00a0c91e6bf6"
	a = f.dial().do("POST", "/v1/locks", `{"keys":["t"],"bind":"ttl","ttl_ms":5000,"request_id":"`+id+`"}`, "Connection: close")
	a.want(t, 200, "")
	if f.locks.last.RequestID.String() != id || f.locks.last.TTL != 5*time.Second {
		t.Errorf("%+v", f.locks.last)
	}
	f.dial().do("POST", "/v1/locks", `{"keys":["u"]}`, "Connection: close").want(t, 400, "invalid_request")
}

func TestInvalidSeveralKeys(t *testing.T) {
	f := start(t)
	c := f.dial()
	keys := func(n int) string {
		var all []string
		for i := range n {
			all = append(all, fmt.Sprintf(`"k%d"`, i))
		}
		return `{"keys":[` + strings.Join(all, " , ") + `]}`
	}
	for body, part := range map[string]string{
		"":                                   "keys is missing",
		`{"wait_ms":1}`:                      "keys is missing",
		`{"keys":[]}`:                        "keys is empty",
		`{"keys":[ ]}`:                       "keys is empty",
		`{"keys":null}`:                      "keys is null",
		`{"keys":"a"}`:                       "keys is a string",
		`{"keys":{"a":1}}`:                   "keys is an object",
		`{"keys":["a",1]}`:                   "keys[1] is a number",
		`{"keys":["a"],"limit":2}`:           "limit is only for a lock that is acquired alone, with PUT",
		`{"keys":[["a"]]}`:                   "keys[0] is an array",
		`{"keys":["a",null]}`:                "keys[1] is null",
		`{"keys":["a",""]}`:                  "keys[1] has 0 bytes",
		`{"keys":["a\u0001"]}`:               "U+0001",
		`{"keys":["a\ud800"]}`:               "surrogate",
		`{"keys":["a","b","a"]}`:             `"a" is given twice`,
		`{"keys":["a","\u0061"]}`:            `"a" is given twice`,
		`{"keys":["a"],"keys":["b"]}`:        "keys is given twice",
		keys(101):                            "more than 100",
		`{"keys":["a"],"key":"b"}`:           `"key"`,
		`{"keys":["a"],"on_success":"skip"}`: "on_success",
		`{"keys":["a"],"owner":"x","reentrant":true}`:                   "reentrant",
		`{"keys":["a"],"reentrant":true}`:                               "reentrant",
		`{"keys":["a"],"bind":"ttl","owner":"x"}`:                       "owner",
		`{"keys":["a"],"bind":"ttl","min_hold_ms":16000}`:               "min_hold_ms",
		`{"keys":["a"],"request_id":"` + strings.Repeat("0", 36) + `"}`: "request_id",
		`{"keys":["` + strings.Repeat("k", 513) + `"]}`:                 "keys[0] has 513 bytes",
		`{"keys":["a"],"wait_ms":-1,"max_hold_ms":5000}`:                "wait_ms is -1; with max_hold_ms, which is 5000, it must be 0 to 4999",
		`{"keys":["a"],"wait_ms":5000,"max_hold_ms":5000}`:              "wait_ms is 5000",
	} {
		a := c.do("POST", "/v1/locks", body)
		a.want(t, 400, "invalid_request")
		a.detail(t, part)
	}
	if f.locks.sessions() != 0 || f.locks.granted() != 0 {
		t.Error("a refused request did something")
	}
	c.do("POST", "/v1/locks", keys(100)).want(t, 200, "")
	c.do("POST", "/v1/locks", `{"keys":["a"],"wait_ms":4999,"max_hold_ms":5000}`).want(t, 200, "")
	c.do("POST", "/v1/locks", `{"keys":["b"],"max_hold_ms":5000}`).want(t, 200, "")
}

// A bind:ttl lock without a TTL has that of the session that it names, else the
// configured one; no hold may be longer.
func TestMinHoldAgainstDefaultTTL(t *testing.T) {
	f := start(t, func(c *Config) { c.TTL = 20 * time.Second })
	_, id := f.explicit() // its TTL is 15 s
	c := f.dial()
	for _, target := range []string{"PUT /v1/locks/%s", "POST /v1/locks"} {
		method, path, _ := strings.Cut(target, " ")
		body := func(key string, ms int) string {
			if method == "PUT" {
				return fmt.Sprintf(`{"bind":"ttl","min_hold_ms":%d}`, ms)
			}
			return fmt.Sprintf(`{"bind":"ttl","min_hold_ms":%d,"keys":[%q]}`, ms, key)
		}
		do := func(key string, ms int, headers ...string) answer {
			return c.do(method, strings.Replace(path, "%s", key, 1), body(key, ms), headers...)
		}
		do("a"+method, 20000).want(t, 200, "")
		do("b"+method, 20001).want(t, 400, "invalid_request")
		do("b"+method, 15000, "Lock-Session: "+id).want(t, 200, "")
		do("c"+method, 15001, "Lock-Session: "+id).want(t, 400, "invalid_request")
	}
}

// longKeys are a hundred keys of 512 bytes, which fit into a body.
func longKeys(n int) string {
	var all []string
	for i := range wire.MaxKeys {
		all = append(all, fmt.Sprintf(`"%0512d"`, n*wire.MaxKeys+i))
	}
	return `{"bind":"ttl","keys":[` + strings.Join(all, ",") + `]}`
}

// A long answer is written in several parts. Its grants are handed back if the last part
// cannot be written; those of the answers before it are not.
func TestPartOfLongAnswerIsUndelivered(t *testing.T) {
	const calls = 30 // whose answers do not fit into the socket
	f := start(t, func(c *Config) { c.Timeouts.StreamWrite = 20 * time.Millisecond })
	c := f.dial()
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		for i := range calls {
			if _, err := io.WriteString(c.Conn, requestText("POST", "/v1/locks", longKeys(i))); err != nil {
				return
			}
		}
	}()
	await.Until(t, "the server cuts the connection", func() bool { return len(f.conns.Conns()) == 0 && f.locks.granted() > 0 })
	<-sent
	complete := 0
	for {
		if _, err := readAnswer(c.r); err != nil {
			break
		}
		complete++
	}
	if complete == 0 {
		t.Fatal("no answer is complete: not what is to be tested")
	}
	for i := range wire.MaxKeys {
		want := fmt.Sprintf("%0512d", complete*wire.MaxKeys+i)
		if g := await.Receive(t, f.locks.handedBack, "the grant handed back"); g.Key != want {
			t.Fatalf("after %d complete answers %s is handed back", complete, g.Key)
		}
	}
	await.Silent(t, f.locks.handedBack, "grant handed back")
}

// A client that goes while it waits for several keys gets none.
func TestDisconnectWhileWaitingForSeveral(t *testing.T) {
	for how, leave := range closes {
		t.Run(how, func(t *testing.T) {
			f := start(t)
			f.locks.take(t, "taken")
			c := f.dial()
			c.do("PUT", "/v1/locks/mine", "").want(t, 200, "")
			c.request("POST", "/v1/locks", `{"keys":["a","taken"],"wait_ms":-1,"bind":"ttl"}`)
			await.Receive(t, f.locks.waiting, "the wait")
			leave(c)
			await.Receive(t, f.locks.abandoned, "the end of the wait")
			await.Receive(t, f.locks.ended, "the session's end")
			f.allClosed()
			await.Until(t, "only the other's key is held", func() bool {
				return f.locks.holds(t, "taken") && !f.locks.holds(t, "a") && !f.locks.holds(t, "mine")
			})
		})
	}
}

// Several locks that are granted to one who has just gone are all handed back.
func TestSeveralGrantsAreHandedBackWhenCallerLeft(t *testing.T) {
	f := start(t)
	_, id := f.explicit()
	granted := make(chan struct{})
	f.locks.onGrant = func() { <-granted } // the grants come after the close
	c := f.dial()
	c.request("POST", "/v1/locks", `{"keys":["a","b","c"]}`, "Lock-Session: "+id)
	await.Until(t, "a call waits", f.callWaits)
	_ = c.Close()
	await.Until(t, "the close is seen", f.callerLeft)
	close(granted)
	for _, key := range []string{"a", "b", "c"} {
		if g := await.Receive(t, f.locks.handedBack, "the grant handed back"); g.Key != key {
			t.Error(g)
		}
	}
	await.Silent(t, f.locks.ended, "end of a session")
}
