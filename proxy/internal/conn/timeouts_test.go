package conn

import (
	"errors"
	"net"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A request has its time from when a part of it is there until it is complete, however
// many pieces it comes in; and what was sent ahead of it takes nothing of that.
func TestRequestTimeout(t *testing.T) {
	const limit = time.Second
	for name, c := range map[string]struct {
		// sends are what the client sends, one after each three fifths of the limit. Behind a "!" the next
		// request begins, as the server finds out when it has read that far.
		sends []string
		late  bool
	}{
		"three pieces":               {[]string{"GE", "T", " /v1"}, true},
		"in two pieces":              {[]string{"GE", "T!"}, false},
		"the next is sent ahead":     {[]string{"GE", "T!GE", "T!"}, false},
		"and then comes in pieces":   {[]string{"GE", "T!GE", "T", " /v1"}, true},
		"empty lines, then a piece":  {[]string{"\r\n", "\r\n", "\r\nG", "E!"}, false},
		"empty lines, then too many": {[]string{"\r\n", "G", "E", "T"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server, client := net.Pipe()
				conn := newConn(quietSet(Config{Timeouts: Timeouts{Request: limit}}), server, Unix)
				conn.BeginRequest() // a request has been answered
				var sending sync.WaitGroup
				defer sending.Wait()
				defer func() { _ = server.Close() }()
				sending.Go(func() {
					for _, send := range c.sends {
						time.Sleep(limit * 3 / 5)
						_, _ = client.Write([]byte(send))
					}
				})
				buffered := 0
				for range c.sends {
					buf := make([]byte, MaxHead-buffered)
					n, err := conn.Read(buf)
					if err != nil {
						if !c.late || !errors.Is(err, os.ErrDeadlineExceeded) {
							t.Error(err)
						}
						return
					}
					buffered += n
					for i, b := range buf[:n] {
						if b == '!' {
							_ = conn.SetReadDeadline(time.Now())
							conn.BeginRequest()
							buffered = n - i - 1
						}
					}
				}
				if c.late {
					t.Error("read to the end")
				}
			})
		})
	}
}

// A connection that is opened ahead has a minute for its first word; then the request has
// its own time. A refused connection has no more than that.
// Proves: threat slow client
func TestFirstRequestTimeout(t *testing.T) {
	for name, c := range map[string]struct {
		sends   map[time.Duration]string // what comes when
		refused bool
		ends    time.Duration // when the time is over
	}{
		"nothing":               {nil, false, time.Minute},
		"empty lines":           {map[time.Duration]string{50 * time.Second: "\r\n\r\n"}, false, time.Minute},
		"late, then the rest":   {map[time.Duration]string{59 * time.Second: "GE", 68 * time.Second: "T"}, false, 69 * time.Second},
		"at once, then nothing": {map[time.Duration]string{time.Second: "GE"}, false, 11 * time.Second},
		"one that is refused":   {nil, true, 10 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server, client := net.Pipe()
				defer func() { _, _ = server.Close(), client.Close() }()
				cfg := Config{MaxConns: 1, Timeouts: Timeouts{First: time.Minute, Request: 10 * time.Second}}
				if c.refused {
					cfg.MaxConns = 0
				}
				set := quietSet(cfg)
				began := time.Now()
				conn := newConn(set, server, Unix)
				if !set.admit(conn) || (conn.Refusal != nil) != c.refused {
					t.Fatal("not admitted")
				}
				for after, text := range c.sends {
					time.AfterFunc(after, func() { _, _ = client.Write([]byte(text)) })
				}
				buffered := 0
				for {
					n, err := conn.Read(make([]byte, MaxHead-buffered))
					if buffered += n; err == nil {
						continue
					}
					if took := time.Since(began); took != c.ends || !errors.Is(err, os.ErrDeadlineExceeded) {
						t.Errorf("over after %s, %v; want %s", took, err, c.ends)
					}
					return
				}
			})
		})
	}
}
