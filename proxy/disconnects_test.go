package proxy

import (
	"context"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/lease"
)

// However many callers leave at a time, in whatever way, each is noticed while its call waits.
func TestStormOfCloses(t *testing.T) {
	f := start(t)
	f.locks.held["taken"] = &fakeLock{token: 1000}
	var all []*client
	for i := range 60 {
		c := f.dial()
		c.do("PUT", fmt.Sprintf("/v1/locks/%d", i), "").want(t, 200, "")
		c.request("PUT", "/v1/locks/taken", `{"wait_ms":-1,"bind":"ttl"}`)
		receive(t, f.locks.waiting, "the wait")
		if i%3 == 0 {
			c.request("GET", "/v1", "") // stands before the close in the socket
		}
		all = append(all, c)
	}
	silent(t, f.locks.abandoned, "end of a wait")
	for i, c := range all {
		go closes[[]string{"close", "half-close"}[i%2]](c)
	}
	for range all {
		receive(t, f.locks.abandoned, "the end of the wait")
		receive(t, f.locks.ended, "the session's end")
	}
}

// A connection may close after its call began and before the call waits.
func TestClosedBeforeTheCallWaits(t *testing.T) {
	for how, leave := range closes {
		t.Run(how, func(t *testing.T) {
			f := start(t)
			f.locks.held["k"] = &fakeLock{token: 1000}
			asked, proceed := make(chan struct{}), make(chan struct{})
			f.locks.onContext = func(op string, _ context.Context) {
				if op == "acquire" {
					close(asked)
					<-proceed
				}
			}
			c := f.dial()
			c.request("PUT", "/v1/locks/k", `{"wait_ms":-1,"bind":"ttl"}`)
			receive(t, asked, "the call")
			leave(c)
			close(proceed)
			receive(t, f.locks.abandoned, "the end of the wait")
		})
	}
}

// A client that half-closes behind its request has the answer if the call is over soon.
func TestAnswerAfterAHalfClose(t *testing.T) {
	f := start(t, unwatched)
	goOn := make(chan struct{})
	f.locks.hook = func(op, _ string) error {
		if op == "acquire" {
			<-goOn
		}
		return nil
	}
	c := f.dial()
	c.request("PUT", "/v1/locks/k", `{"bind":"ttl"}`)
	eventually(t, "a call waits", f.callWaits)
	_ = c.Conn.(*net.UnixConn).CloseWrite()
	close(goOn)
	c.read().want(t, 200, "")
	silent(t, f.locks.handedBack, "grant handed back")
}

// The first poll leaves a call alone that may only just have begun; the second notices that
// its caller has left.
func TestCallIsPolledTwice(t *testing.T) {
	f := start(t, unwatched)
	f.locks.held["k"] = &fakeLock{token: 1000}
	c := f.dial()
	f.wait(c, 1)
	_ = c.Close()
	for range 2 {
		silent(t, f.locks.abandoned, "end of the wait")
		poll(f.openConns())
	}
	receive(t, f.locks.abandoned, "the end of the wait")
}

// The timer runs only while a call is under way that has no guard.
func TestTimerRunsForYoungCallsOnly(t *testing.T) {
	f := start(t, func(c *Config) { c.Timeouts.Poll = time.Millisecond })
	f.locks.held["k"] = &fakeLock{token: 1000}
	for _, long := range []bool{false, true, false, true} {
		c := f.dial()
		c.do("GET", "/v1/locks/k", "").want(t, 200, "")
		eventually(t, "the timer is stopped", f.disconnects.asleep.Load)
		f.wait(c, 1)
		if long {
			eventually(t, "the timer is stopped", f.disconnects.asleep.Load)
		}
		_ = c.Close()
		receive(t, f.locks.abandoned, "the end of the wait")
	}
}

// A call that had a guard leaves the connection as it was.
func TestConnectionAfterAGuardedCall(t *testing.T) {
	t.Parallel()
	f := start(t, func(c *Config) { c.Timeouts.Poll, c.Timeouts.Request = time.Millisecond, unhurried })
	c := f.dial()
	for _, parts := range []int{1, 2, 1} {
		f.locks.mu.Lock()
		f.locks.held["k"] = &fakeLock{token: 1000}
		f.locks.mu.Unlock()
		f.wait(c, parts)
		eventually(t, "the timer is stopped", f.disconnects.asleep.Load)
		c.request("GET", "/healthz", "") // sent ahead
		f.locks.HandBack(nil, lease.Grant{Key: "k", Token: 1000})
		<-f.locks.handedBack
		a := c.read()
		a.want(t, 200, "")
		c.read().want(t, 200, "")
		c.do("DELETE", "/v1/locks/k?token="+tokenOf(a), "").want(t, 200, "")
	}
	silent(t, f.locks.handedBack, "grant handed back")
	time.Sleep(f.cfg.Timeouts.Request * 5 / 4)
	c.do("GET", "/v1", "").want(t, 200, "")
}
