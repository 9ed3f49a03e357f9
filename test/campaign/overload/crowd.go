package overload

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/locksidecar/locksidecar/internal/testing/wire"
)

// counts has what became of calls.
type counts struct {
	mu    sync.Mutex
	n     map[string]int
	wrong []string
}

// The ends of a call that has no status.
const (
	// closed: the sidecar closed the connection instead of an answer.
	closed = "closed"
	// notAccepted: the queue of new connections was full.
	notAccepted = "not accepted"
)

// note counts an answer, and whether it is an honest one.
func (t *counts) note(a wire.Answer, err error) (what string) {
	what = strings.TrimSpace(fmt.Sprint(a.Status, " ", a.Code))
	wrong := ""
	switch {
	case errors.Is(err, syscall.EAGAIN):
		what = notAccepted
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		what = closed
	case err != nil:
		what, wrong = "error", err.Error()
	case a.Status == 200:
	case a.Status != 429 && a.Status != 503 || a.Code == "":
		wrong = fmt.Sprintf("an answer %d %q: %s", a.Status, a.Code, a.Detail)
	case a.RetryAfter == "":
		wrong = fmt.Sprintf("an answer %d %q without Retry-After", a.Status, a.Code)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.n == nil {
		t.n = make(map[string]int)
	}
	t.n[what]++
	if wrong != "" && len(t.wrong) < 10 {
		t.wrong = append(t.wrong, wrong)
	}
	return what
}

func (t *counts) of(what string) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.n[what]
}

func (t *counts) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var parts []string
	for _, what := range slices.Sorted(maps.Keys(t.n)) {
		parts = append(parts, fmt.Sprintf("%s: %d", what, t.n[what]))
	}
	return strings.Join(parts, ", ")
}

// pace limits how many calls begin in a second; 0: any number.
func pace(ctx context.Context, rate int) <-chan struct{} {
	permits := make(chan struct{})
	go func() {
		defer close(permits)
		for began, given := time.Now(), 0; ctx.Err() == nil; given++ {
			if rate > 0 {
				rest(ctx, time.Duration(given)*time.Second/time.Duration(rate)-time.Since(began))
			}
			select {
			case <-ctx.Done():
			case permits <- struct{}{}:
			}
		}
	}()
	return permits
}

func rest(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// callLimit is how long a call may take that waits for nobody.
const callLimit = 20 * time.Second

// crowd is the connections of one app.
type crowd struct {
	socket  string
	permits <-chan struct{}
	counts  counts

	mu      sync.Mutex
	conns   map[*wire.Conn]struct{}
	gone    bool
	clients sync.WaitGroup

	// asked and refused count calls that wait, pending those without an answer.
	asked, refused, pending atomic.Int64
}

func newCrowd(socket string, permits <-chan struct{}) *crowd {
	return &crowd{socket: socket, permits: permits, conns: make(map[*wire.Conn]struct{})}
}

// dial opens a connection of the crowd.
func (c *crowd) dial() (*wire.Conn, error) {
	conn, err := wire.Dial(c.socket)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gone {
		return nil, errors.Join(errors.New("overload: the crowd has left"), conn.Close())
	}
	c.conns[conn] = struct{}{}
	return conn, nil
}

func (c *crowd) hangUp(conn *wire.Conn) {
	c.mu.Lock()
	delete(c.conns, conn)
	c.mu.Unlock()
	_ = conn.Close()
}

// leave closes all connections at once, as when the app dies.
func (c *crowd) leave() {
	c.mu.Lock()
	c.gone = true
	for conn := range c.conns {
		_ = conn.Close()
	}
	clear(c.conns)
	c.mu.Unlock()
	c.clients.Wait()
}

func (c *crowd) left() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.gone
}

// open returns how many connections there are.
func (c *crowd) open() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.conns)
}

// connect makes a call on each of n connections, one after the other. Connections stay open if their call was
// granted.
func (c *crowd) connect(n int, call func(conn *wire.Conn, i int) (wire.Answer, error)) {
	for i := range n {
		<-c.permits
		conn, err := c.dial()
		if err != nil {
			c.counts.note(wire.Answer{}, err)
			continue
		}
		a, err := call(conn, i)
		if c.counts.note(a, err); a.Status != 200 {
			c.hangUp(conn)
		}
	}
}

// wait lets n clients make calls that wait until leave, and whoever is refused ask again,
// until there were so many calls in all.
func (c *crowd) wait(n, calls int, send func(conn *wire.Conn, client int) error) {
	for i := range n {
		c.clients.Go(func() {
			var conn *wire.Conn
			for c.asked.Add(1) <= int64(calls) {
				<-c.permits
				c.pending.Add(1)
				a, err := c.waitOn(&conn, func(conn *wire.Conn) error { return send(conn, i) })
				c.pending.Add(-1)
				if c.left() {
					return
				}
				c.refused.Add(1)
				c.counts.note(a, err)
				if conn != nil && (err != nil || a.Closes) {
					c.hangUp(conn)
					conn = nil
				}
			}
		})
	}
}

// waitOn sends a call on a connection, or a new one, and returns when it is answered.
func (c *crowd) waitOn(conn **wire.Conn, send func(*wire.Conn) error) (a wire.Answer, err error) {
	if *conn == nil {
		if *conn, err = c.dial(); err != nil {
			return a, err
		}
	}
	_ = (*conn).SetDeadline(time.Time{})
	if err := send(*conn); err != nil {
		return a, err
	}
	return (*conn).Receive("PUT")
}
