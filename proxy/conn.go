package proxy

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/locksidecar/locksidecar/lease"
	"github.com/locksidecar/locksidecar/proxy/internal/conn"
	"github.com/locksidecar/locksidecar/proxy/internal/wire"
)

// connection is a client's connection, as fasthttp serves it. Only the goroutine that
// serves it uses its fields and calls Read, Write and Close, except where it says
// otherwise.
type connection struct {
	net.Conn
	srv  *Server
	kind kind
	raw  syscall.RawConn // nil if there is none: then it is not watched
	fd   int32           // for poll(2); a closed connection's may be another one's
	peer conn.Peer
	born time.Time
	// refusal, if not nil, is the answer to every call.
	refusal *wire.Problem

	// session is the connection's own; nil before the first acquire.
	session Session
	// stream is set when the connection is an event stream. Stop reads it.
	stream atomic.Pointer[stream]
	// busy: a call is under way, or its answer is not written. Stop reads it.
	busy   atomic.Bool
	watch  watch
	call   call
	closed bool
	// evicted: cut to make room for another. Server.mu guards it.
	evicted bool
	// onClose is called at the end of Close; it may be nil.
	onClose func()

	// wanted is the read deadline that is due, set the one that the socket has. Zero: none.
	wanted, set time.Time
	unbegun     bool // the time of the next request has not begun
	inHead      bool // the head of the next request is not complete
	kept        bool // a request was complete
	asked       bool // a part of the next request has arrived, not just empty lines
	blank       int  // how many CR and LF came last
	mute        bool // writes go nowhere
	timedOut    bool // the last read came to its deadline
	linger      bool // there may be a request that was not read to its end
	longAnswer  bool // one of the places for long answers is taken
	directWrite directWrite
	unwritten   []unwrittenGrant
	delivery    delivery
}

const (
	// lingerBytes is the most that is read from a client that still sends.
	lingerBytes = 8 << 20

	// maxScratch is the most memory that a connection keeps for answers.
	maxScratch = 64 << 10
)

func newConn(s *Server, nc net.Conn, k kind) *connection {
	c := &connection{Conn: nc, srv: s, kind: k, born: time.Now(), inHead: true, unbegun: true}
	c.wanted = c.born.Add(s.cfg.Timeouts.First)
	c.directWrite.fn = c.directWrite.run
	c.watch.c, c.delivery.c, c.call.c, c.call.srv = c, c, c, s
	if sc, ok := nc.(syscall.Conn); ok {
		if raw, err := sc.SyscallConn(); err == nil {
			c.raw = raw
			_ = raw.Control(func(fd uintptr) { c.fd = int32(fd) })
		}
	}
	if c.raw != nil && k == kindUnix {
		c.peer = conn.PeerOf(c.raw)
	}
	return c
}

// Read is called by fasthttp between requests and within one. The first request has
// Timeouts.First. An idle connection has no deadline, also when empty lines arrive. The
// time of a request begins when a part has arrived and the rest has to be waited for: most
// come in one piece and need no clock.
func (c *connection) Read(p []byte) (int, error) {
	c.busy.Store(false)
	if c.srv.stopping.Load() {
		return 0, io.EOF
	}
	c.releaseLongAnswer()
	c.asked = !c.onlyBlank(p)
	switch {
	case c.asked && c.unbegun:
		c.wanted, c.unbegun = time.Now().Add(c.srv.cfg.Timeouts.Request), false
	case c.kept && !c.asked:
		c.wanted, c.unbegun = noDeadline, true
	}
	if c.wanted != c.set {
		if err := c.setDeadlineNow(c.wanted); err != nil {
			return 0, err
		}
	}
	n, err := c.Conn.Read(p)
	if c.noteBlank(p[:n]) {
		c.asked = true
	}
	if err != nil {
		c.timedOut = errors.Is(err, os.ErrDeadlineExceeded)
	}
	return n, err
}

// onlyBlank reports whether fasthttp has only empty lines of the next request. It reads a
// head into the free part of a buffer of maxHead bytes, so the rest has the last bytes.
func (c *connection) onlyBlank(p []byte) bool {
	return c.inHead && maxHead-len(p) <= c.blank
}

// noteBlank counts the empty lines at the end of b, and reports whether b has anything
// else.
func (c *connection) noteBlank(b []byte) (more bool) {
	n := len(b) - len(bytes.TrimRight(b, "\r\n"))
	if n < len(b) {
		c.blank = n
		return true
	}
	c.blank += n
	return false
}

// SetReadDeadline is called by fasthttp when a head is complete: see noteHeadRead. The body
// has the rest of the time.
func (c *connection) SetReadDeadline(time.Time) error {
	c.inHead = false
	return nil
}

// nextHead notes that the next bytes are of another head.
func (c *connection) nextHead() { c.inHead, c.kept, c.unbegun = true, true, true }

func (c *connection) setDeadlineNow(t time.Time) error {
	c.set = t
	return c.Conn.SetReadDeadline(t)
}

// ownSession returns the connection's session, and opens it if there is none.
func (c *connection) ownSession() (Session, error) {
	if c.session == nil {
		s, err := c.srv.locks.OpenSession(lease.SessionOptions{})
		if err != nil {
			return nil, err
		}
		c.session = s
	}
	return c.session, nil
}

// drop ends the connection's sessions and stream. The watch may call it while the serving
// goroutine is blocked.
func (c *connection) drop() {
	c.end(c.session)
	if st := c.stream.Load(); st != nil {
		st.onDrop()
	}
}

func (c *connection) end(s Session) {
	if s == nil {
		return
	}
	held := s.Held()
	s.End(c.srv.endReason())
	if held > 0 {
		c.srv.log.Warn("connection closed while it held locks: they are released",
			"locks", held, "session", s.Name(), "age", time.Since(c.born).Round(time.Millisecond).String(),
			"pid", c.peer.PID, "uid", c.peer.UID, "stopping", c.srv.stopping.Load())
	}
}

// Close ends everything of the connection. fasthttp calls it, or the end of a stream.
func (c *connection) Close() error {
	if c.closed {
		return nil
	}
	c.closed = true
	c.releaseLongAnswer()
	c.handBackUnwritten()
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

// lingerOn lets a client that still sends read the answer: a close at once would reset the
// connection.
func (c *connection) lingerOn() {
	if h, ok := c.Conn.(interface{ CloseWrite() error }); !ok || h.CloseWrite() != nil {
		return
	}
	_ = c.Conn.SetReadDeadline(time.Now().Add(c.srv.cfg.Timeouts.Linger))
	_, _ = io.CopyN(io.Discard, c.Conn, lingerBytes)
}

// cut closes the connection from outside. Its serving goroutine or the watch of its call
// notices.
func (c *connection) cut() {
	_ = c.Conn.Close()
}

// leave ends the connection from outside: now if it is idle, else after its answer.
func (c *connection) leave() {
	if st := c.stream.Load(); st != nil {
		st.onLeave()
		return
	}
	if !c.busy.Load() {
		c.cut()
	}
}
