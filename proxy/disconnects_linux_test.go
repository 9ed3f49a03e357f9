package proxy

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// closed tells whether a connection's watch has heard that the peer closed.
func (f *fixture) sawClose() bool {
	for _, c := range f.openConns() {
		c.watch.mu.Lock()
		closed := c.watch.peerHasClosed
		c.watch.mu.Unlock()
		if closed {
			return true
		}
	}
	return false
}

// The end of a connection is heard once, and perhaps before its call waits.
func TestClosedBeforeTheCallWaits(t *testing.T) {
	for how, leave := range closes {
		t.Run(how, func(t *testing.T) {
			f := start(t)
			f.locks.held["k"] = &fakeLock{token: 1000}
			asked, goOn := make(chan struct{}), make(chan struct{})
			f.locks.onContext = func(op string, _ context.Context) {
				if op == "acquire" {
					close(asked)
					<-goOn
				}
			}
			c := f.dial()
			c.request("PUT", "/v1/locks/k", `{"wait_ms":-1,"bind":"ttl"}`)
			receive(t, asked, "the call")
			leave(c)
			eventually(t, "the close is heard", f.sawClose)
			close(goOn)
			receive(t, f.locks.abandoned, "the end of the wait")
		})
	}
}

// Who half-closes behind a request has the answer, if the call is over soon.
func TestAnswerAfterAHalfClose(t *testing.T) {
	f := start(t, func(c *Config) { c.Timeouts.Watch = time.Hour })
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
	eventually(t, "the close is heard", f.sawClose)
	close(goOn)
	c.read().want(t, 200, "")
	silent(t, f.locks.handedBack, "grant handed back")
}

// Connections that have gone are forgotten.
func TestClosedConnectionsAreForgotten(t *testing.T) {
	f := start(t)
	for range 3 {
		c := f.dial()
		c.do("GET", "/v1", "").want(t, 200, "")
		_ = c.Close()
	}
	eventually(t, "all are forgotten", func() bool {
		f.disconnects.mu.Lock()
		defer f.disconnects.mu.Unlock()
		return len(f.disconnects.conns) == 0
	})
}

// faulty is a kernel that does not tell of all that it is asked for. A nil function leaves
// things as they are.
type faulty struct {
	notifier
	refuses func(number int32) error
	says    func(number int32) (times int)
}

func (f *faulty) add(raw syscall.RawConn, number int32) error {
	if f.refuses != nil {
		if err := f.refuses(number); err != nil {
			return err
		}
	}
	return f.notifier.add(raw, number)
}

func (f *faulty) listen(notify func(number int32)) error {
	return f.notifier.listen(func(number int32) {
		times := 1
		if f.says != nil {
			times = f.says(number)
		}
		for range times {
			notify(number)
		}
	})
}

// saysOnly says of the ways in which a try goes some, twice, and nothing else.
func saysOnly(tries ...int32) func(number int32) int {
	return func(number int32) int {
		if slices.Contains(tries, number) {
			return 2
		}
		return 0
	}
}

const pollWarning = "connections with a waiting call are polled"

// However many go at a time, in whatever way, each is noticed while its call waits, by the
// kernel's word, and as well where the kernel does not give it.
func TestStormOfCloses(t *testing.T) {
	kernels := map[string]struct {
		kernel faulty
		dies   bool // while calls wait
		looks  bool
	}{
		"tells":                     {},
		"says all twice":            {kernel: faulty{says: func(int32) int { return 2 }}},
		"says nothing":              {looks: true, kernel: faulty{says: saysOnly(1)}},
		"tells of closes only":      {looks: true, kernel: faulty{says: saysOnly(-1)}},
		"tells of half-closes only": {looks: true, kernel: faulty{says: saysOnly(0)}},
		"listens to nobody":         {looks: true, kernel: faulty{refuses: func(int32) error { return syscall.EPERM }}},
		"listens to no more": {looks: true, kernel: faulty{refuses: func(number int32) error {
			if number > 5 {
				return syscall.ENOSPC
			}
			return nil
		}}},
		"is not heard any more": {looks: true, dies: true},
	}
	for name, k := range kernels {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := start(t, func(c *Config) {
				c.newNotifier = func() (notifier, error) {
					kernel, err := newNotifier()
					k.kernel.notifier = kernel
					return &k.kernel, err
				}
			})
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
			if k.dies {
				k.kernel.close()
			}
			for i, c := range all {
				go closes[[]string{"close", "half-close"}[i%2]](c)
			}
			for range all {
				receive(t, f.locks.abandoned, "the end of the wait")
				receive(t, f.locks.ended, "the session's end")
			}
			want := 0
			if k.looks {
				want = 1
			}
			if n := strings.Count(f.log.text(), pollWarning); n != want {
				t.Errorf("%d lines say that connections are looked at: %s", n, f.log.text())
			}
		})
	}
}

// A server without a kernel that tells begins to serve, too.
func TestPollingWithoutNotifier(t *testing.T) {
	for err, want := range map[error]int{syscall.ENOSYS: 1, errNoNotifier: 0} {
		f := start(t, func(c *Config) { c.newNotifier = func() (notifier, error) { return nil, err } })
		f.locks.held["taken"] = &fakeLock{token: 1000}
		c := f.dial()
		c.request("PUT", "/v1/locks/taken", `{"wait_ms":-1,"bind":"ttl"}`)
		receive(t, f.locks.waiting, "the wait")
		_ = c.Close()
		receive(t, f.locks.abandoned, "the end of the wait")
		if n := strings.Count(f.log.text(), pollWarning); n != want {
			t.Errorf("%v: %d lines say that connections are looked at", err, n)
		}
	}
}
