package proxy

import (
	"context"
	"fmt"
	"net"
	"testing"

	"github.com/locksidecar/locksidecar/internal/testing/await"
)

// However many callers leave at a time, in whatever way, each is noticed while its call waits.
func TestStormOfCloses(t *testing.T) {
	f := start(t)
	f.locks.take(t, "taken")
	var all []*client
	for i := range 60 {
		c := f.dial()
		c.do("PUT", fmt.Sprintf("/v1/locks/%d", i), "").want(t, 200, "")
		c.request("PUT", "/v1/locks/taken", `{"wait_ms":-1,"bind":"ttl"}`)
		await.Receive(t, f.locks.waiting, "the wait")
		if i%3 == 0 {
			c.request("GET", "/v1", "") // stands before the close in the socket
		}
		all = append(all, c)
	}
	await.Silent(t, f.locks.abandoned, "end of a wait")
	for i, c := range all {
		go closes[[]string{"close", "half-close"}[i%2]](c)
	}
	for range all {
		await.Receive(t, f.locks.abandoned, "the end of the wait")
		await.Receive(t, f.locks.ended, "the session's end")
	}
}

// A connection may close after its call began and before the call waits.
// Proves: trap unseen disconnect
func TestClosedBeforeTheCallWaits(t *testing.T) {
	for how, leave := range closes {
		t.Run(how, func(t *testing.T) {
			f := start(t)
			f.locks.take(t, "k")
			asked, proceed := make(chan struct{}), make(chan struct{})
			f.locks.onContext = func(op string, _ context.Context) {
				if op == "acquire" {
					close(asked)
					<-proceed
				}
			}
			c := f.dial()
			c.request("PUT", "/v1/locks/k", `{"wait_ms":-1,"bind":"ttl"}`)
			await.Receive(t, asked, "the call")
			leave(c)
			close(proceed)
			await.Receive(t, f.locks.abandoned, "the end of the wait")
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
	await.Until(t, "a call waits", f.callWaits)
	_ = c.Conn.(*net.UnixConn).CloseWrite()
	close(goOn)
	c.read().want(t, 200, "")
	await.Silent(t, f.locks.handedBack, "grant handed back")
}
