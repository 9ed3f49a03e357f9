package proxy

import (
	"errors"
	"io"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/locksidecar/locksidecar/lease"
)

// conn is a client's connection: the net.Conn that fasthttp serves, and what
// belongs to it. Its fields belong to the goroutine that serves it, which is the
// only one that calls Read, Write and Close, except where it says otherwise.
type conn struct {
	net.Conn
	srv  *Server
	kind kind
	raw  syscall.RawConn // nil if there is none: then it is not watched
	peer peer
	born time.Time
	// refusal, if not nil, is the answer to every call.
	refusal *problem

	// session is the connection's own, nil before the first acquire.
	session Session
	// stream is set when the connection is an event stream. Stop reads it.
	stream atomic.Pointer[stream]
	// busy: a call is pending, or its answer is not yet written. Stop reads it.
	busy   atomic.Bool
	watch  watch
	call   call
	closed bool
	// onClose is called at the end of Close; it may be nil.
	onClose func()

	// wanted is the read deadline that fasthttp asked for, set the one that the
	// socket has. Zero: none.
	wanted, set time.Time
	heard       bool // a byte has arrived
	mute        bool // writes go nowhere
	timedOut    bool // the last read came to its deadline
	linger      bool // there may be a request that was not read to its end
	pending     []undelivered
}

// peer is who is at the other end of a Unix socket.
type peer struct {
	known bool
	uid   uint32
	pid   int32
}

// undelivered is a grant that outlives the connection and whose answer the
// client has not confirmed.
type undelivered struct {
	session Session
	grant   lease.Grant
	written bool
}

const (
	// A client that is still sending what is refused gets to read the answer if
	// what it sends is taken for a while.
	lingerTime  = time.Second
	lingerBytes = 8 << 20

	// maxScratch is the most memory that a connection keeps for answers.
	maxScratch = 64 << 10
)

func newConn(s *Server, nc net.Conn, k kind) *conn {
	c := &conn{Conn: nc, srv: s, kind: k, born: time.Now()}
	c.watch.c, c.call.c, c.call.srv = c, c, s
	if sc, ok := nc.(syscall.Conn); ok {
		if raw, err := sc.SyscallConn(); err == nil {
			c.raw = raw
		}
	}
	if c.raw != nil && k == kindUnix {
		c.peer = peerOf(c.raw)
	}
	return c
}

// Read is called by fasthttp when the connection is idle or a request not yet
// complete.
func (c *conn) Read(p []byte) (int, error) {
	c.busy.Store(false)
	if c.srv.stopping.Load() {
		return 0, io.EOF
	}
	if c.wanted != c.set {
		if err := c.setDeadlineNow(c.wanted); err != nil {
			return 0, err
		}
	}
	n, err := c.Conn.Read(p)
	if n > 0 {
		c.heard = true
		c.confirm()
	}
	if err != nil {
		c.timedOut = errors.Is(err, os.ErrDeadlineExceeded)
		if errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.EPIPE) {
			c.discard(true) // the peer closed with our answer unread
		}
	}
	return n, err
}

// SetReadDeadline is called by fasthttp twice for each request, and for most of
// them nothing is read under the second one. So it is only noted here: a timer
// less for each request. An idle connection has no deadline at all.
func (c *conn) SetReadDeadline(t time.Time) error {
	if t.Sub(c.born) > idleForever/2 {
		t = noDeadline
	}
	c.wanted = t
	return nil
}

func (c *conn) setDeadlineNow(t time.Time) error {
	c.set = t
	return c.Conn.SetReadDeadline(t)
}

func (c *conn) Write(p []byte) (int, error) {
	if c.mute {
		return len(p), nil
	}
	n, err := c.Conn.Write(p)
	if err != nil {
		c.discard(false)
		return n, err
	}
	for i := range c.pending {
		c.pending[i].written = true
	}
	return n, nil
}

// owe remembers a grant until its answer is delivered.
func (c *conn) owe(s Session, g lease.Grant) {
	c.pending = append(c.pending, undelivered{session: s, grant: g})
}

// confirm forgets the grants whose answers were written: the client goes on.
func (c *conn) confirm() {
	if len(c.pending) == 0 {
		return
	}
	kept := c.pending[:0]
	for _, u := range c.pending {
		if !u.written {
			kept = append(kept, u)
		}
	}
	clear(c.pending[len(kept):])
	c.pending = kept
}

// discard gives back the grants whose answers were not written, or all.
func (c *conn) discard(all bool) {
	for _, u := range c.pending {
		if all || !u.written {
			c.srv.log.Info("grant given back: its answer could not be delivered",
				"key", u.grant.Key, "token", u.grant.Token)
			c.srv.locks.Discard(u.session, u.grant)
		}
	}
	c.pending = nil
}

// ownSession returns the connection's session, and opens it if there is none.
func (c *conn) ownSession() (Session, error) {
	if c.session == nil {
		s, err := c.srv.locks.OpenSession(lease.SessionOptions{})
		if err != nil {
			return nil, err
		}
		c.session = s
	}
	return c.session, nil
}

// drop ends the connection's sessions: it has closed. The watch calls it while
// the serving goroutine is blocked; once more does no harm.
func (c *conn) drop() {
	c.end(c.session)
	if st := c.stream.Load(); st != nil {
		c.end(st.session)
	}
}

func (c *conn) end(s Session) {
	if s == nil {
		return
	}
	held := s.Held()
	s.End(c.srv.endReason())
	if held > 0 {
		c.srv.log.Warn("connection closed while it held locks: they are released",
			"locks", held, "session", s.Name(), "age", time.Since(c.born).Round(time.Millisecond),
			"pid", c.peer.pid, "uid", c.peer.uid, "stopping", c.srv.stopping.Load())
	}
}

// Close ends all that belongs to the connection. fasthttp calls it, whatever the
// reason; so does a stream's end.
func (c *conn) Close() error {
	if c.closed {
		return nil
	}
	c.closed = true
	c.discard(false)
	c.drop()
	if c.linger {
		c.lingerOn()
	}
	err := c.Conn.Close()
	c.srv.forget(c)
	if c.onClose != nil {
		c.onClose()
	}
	return err
}

// lingerOn lets a client that is still sending read our answer: closing now
// would reset the connection.
func (c *conn) lingerOn() {
	if h, ok := c.Conn.(interface{ CloseWrite() error }); !ok || h.CloseWrite() != nil {
		return
	}
	_ = c.Conn.SetReadDeadline(time.Now().Add(lingerTime))
	_, _ = io.CopyN(io.Discard, c.Conn, lingerBytes)
}

// cut closes the connection from outside: whoever serves it finds out.
func (c *conn) cut() { _ = c.Conn.Close() }

// leave asks the connection to go, from outside: at once if it is idle, else
// when its call is answered.
func (c *conn) leave() {
	if st := c.stream.Load(); st != nil {
		st.session.End(lease.EndShutdown)
		return
	}
	if !c.busy.Load() {
		c.cut()
	}
}
