package conn

import (
	"context"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/locksidecar/locksidecar/internal/testing/await"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// unhurried is a time that a test lets pass on purpose, and that is long for a machine that
// stands still for a while.
const unhurried = 4 * time.Second

// quiet is the log of sockets in tests.
var quiet = slog.New(slog.DiscardHandler)

// quietSet makes a set whose connections have no owner to speak of.
func quietSet(cfg Config) *Set {
	cfg.Log = quiet
	return NewSet(cfg, func(c *Conn) Owner { return &owner{Conn: c} }, func(nc net.Conn) { _ = nc.Close() })
}

// owner tells its rig, if it has one, once.
type owner struct {
	*Conn
	rig  *rig
	once sync.Once
}

func (o *owner) Disconnected() {
	if o.rig != nil {
		o.once.Do(func() { o.rig.disconnected <- o.Conn })
	}
}

// rig serves a socket. A request is a line. Its call waits until it is answered or its caller
// leaves; the answer is "ok" or "left", and a line.
type rig struct {
	*Set
	t            *testing.T
	path         string
	disconnected chan *Conn    // whose owners were told
	began        chan struct{} // a value for each call
	answer       chan struct{} // a value ends a call
}

func serve(t *testing.T, timeouts Timeouts) *rig {
	t.Helper()
	r := &rig{
		t: t, path: t.TempDir() + "/s",
		disconnected: make(chan *Conn, 100), began: make(chan struct{}, 100), answer: make(chan struct{}),
	}
	timeouts.First, timeouts.Request = time.Minute, max(timeouts.Request, unhurried)
	s, err := listenAt(t, r.path)
	if err != nil {
		t.Fatal(err)
	}
	r.Set = NewSet(Config{Log: quiet, MaxConns: 100, Timeouts: timeouts}, func(c *Conn) Owner { return &owner{Conn: c, rig: r} }, r.serve)
	r.Accept(s.Listener, Unix)
	t.Cleanup(func() {
		r.BeginStop()
		s.Close(quiet)
		r.Stop(0)
	})
	return r
}

func (r *rig) serve(nc net.Conn) {
	defer func() { _ = nc.Close() }()
	c, buffer, n := nc.(*owner), make([]byte, MaxHead), 0
	for {
		line, rest, found := strings.Cut(string(buffer[:n]), "\n")
		if !found {
			more, err := c.Read(buffer[n:])
			if err != nil {
				return
			}
			n += more
			continue
		}
		n = copy(buffer, rest)
		c.BeginRequest()
		ctx := c.BeginCall(context.Background(), line != "carry out")
		r.began <- struct{}{}
		answer := "ok\n"
		select {
		case <-ctx.Done():
			answer = "left\n"
		case <-r.answer:
		}
		c.EndCall()
		if _, err := c.Write([]byte(answer)); err != nil {
			return
		}
	}
}

// dial makes a connection to the rig.
func (r *rig) dial() net.Conn {
	r.t.Helper()
	nc, err := net.Dial("unix", r.path)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = nc.Close() })
	_ = nc.SetDeadline(time.Now().Add(await.Patience))
	return nc
}

// send sends text, and waits for the calls that begin then.
func (r *rig) send(nc net.Conn, text string, calls int) {
	r.t.Helper()
	if _, err := io.WriteString(nc, text); err != nil {
		r.t.Fatal(err)
	}
	for range calls {
		await.Receive(r.t, r.began, "the call")
	}
}

// gone waits until all connections are closed, and so their calls are over.
func (r *rig) gone() {
	r.t.Helper()
	await.Until(r.t, "the connections are gone", func() bool { return len(r.Conns()) == 0 })
}

// reply ends the call that waits, and reads its answer.
func (r *rig) reply(nc net.Conn) {
	r.t.Helper()
	r.answer <- struct{}{}
	answer := make([]byte, 3)
	if _, err := io.ReadFull(nc, answer); err != nil || string(answer) != "ok\n" {
		r.t.Fatalf("answered %q, %v", answer, err)
	}
}
