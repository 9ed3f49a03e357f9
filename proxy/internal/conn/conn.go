package conn

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/locksidecar/locksidecar/proxy/internal/wire"
)

// Kind is the address at which a connection came in.
type Kind uint8

// The kinds of connections.
const (
	Unix Kind = iota
	TCP
	Admin
	// Passed: another server of this user passes calls on.
	Passed
	kinds
)

const (
	// MaxHead limits the bytes of a request's head, and is the size of the read buffer.
	MaxHead = 16 << 10
	// lingerBytes limits what is read from a client that still sends.
	lingerBytes = 8 << 20
)

var (
	noDeadline   time.Time
	pastDeadline = time.Unix(1, 0)
)

// Owner is a served connection with everything that ends with it. It embeds the [Conn].
type Owner interface {
	net.Conn
	// Disconnected is called when the connection has closed, perhaps repeatedly, and perhaps by another
	// goroutine during a call.
	Disconnected()
}

// Conn is a client's connection, as fasthttp serves it. Only its serving goroutine calls its methods,
// unless their comments say otherwise.
type Conn struct {
	net.Conn
	Kind Kind
	Peer Peer
	Born time.Time
	// Refusal, if not nil, is the answer to every call.
	Refusal *wire.Problem

	set   *Set
	owner Owner
	// under is the connection under TLS, or the connection itself.
	under net.Conn
	raw   syscall.RawConn // of under; if nil, its calls have no guard
	guard guard
	// stream is set when the connection is an event stream. Stop reads it.
	stream atomic.Pointer[Stream]
	// busy: a call is running, or its answer is not written. Stop reads it.
	busy   atomic.Bool
	closed bool
	// evicted: closed to make room for another connection. Set.mu guards it.
	evicted bool
	// unproven: it has not shown a token yet. placeless: it is another server's, and has no place among those of apps. Set.mu guards them, and only the serving
	// goroutine changes them.
	unproven, placeless bool

	// wanted is the read deadline that should be set. deadline is the one that the socket has. Zero means none.
	wanted, deadline time.Time
	unbegun          bool  // the time limit of the next request has not begun
	inHead           bool  // the head of the next request is not complete
	kept             bool  // a request was complete
	asked            bool  // a part of the next request has arrived, more than empty lines
	blank            int   // how many bytes CR and LF came last
	mute             bool  // writes are discarded
	timedOut         bool  // the last read reached its deadline
	linger           bool  // a request may not be read to its end
	answer           int64 // bytes taken for an answer that is not written
	body             int64 // bytes taken for a body that is not complete
	received         int   // of the body
	directWrite      directWrite
}

func newConn(s *Set, nc net.Conn, k Kind) *Conn {
	c := &Conn{Conn: nc, under: nc, Kind: k, Born: time.Now(), set: s, inHead: true, unbegun: true, placeless: k == Passed}
	if k == TCP {
		noticeSilence(nc, s.cfg.Silence)
		if s.cfg.TLS != nil {
			c.Conn = tls.Server(nc, s.cfg.TLS)
		}
		c.unproven = s.cfg.NeedsToken
	}
	c.wanted = c.Born.Add(s.cfg.Timeouts.First)
	c.directWrite.fn = c.directWrite.run
	c.guard.c = c
	if sc, ok := nc.(syscall.Conn); ok {
		if raw, err := sc.SyscallConn(); err == nil {
			c.raw = raw
		}
	}
	if c.raw != nil && k == Unix {
		c.Peer = peerOf(c.raw)
	}
	c.owner = s.own(c)
	return c
}

// handshake is that of TLS, if the connection has it.
func (c *Conn) handshake() error {
	encrypted, ok := c.Conn.(*tls.Conn)
	if !ok {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), c.set.cfg.Timeouts.Handshake)
	defer cancel()
	err := encrypted.HandshakeContext(ctx)
	var plain tls.RecordHeaderError
	if errors.As(err, &plain) && plain.Conn != nil && isHTTP(plain.RecordHeader) {
		_ = plain.Conn.SetWriteDeadline(time.Now().Add(c.set.cfg.Timeouts.Linger))
		_, _ = io.WriteString(plain.Conn, wire.SpeaksTLS)
	}
	return err
}

// isHTTP reports whether a request of HTTP begins like this: with a method, such as "PUT /".
func isHTTP(begin [5]byte) bool {
	for _, b := range begin {
		if (b < 'A' || b > 'Z') && b != ' ' && b != '/' {
			return false
		}
	}
	return true
}

// Read is called by fasthttp. The first request has the time limit Timeouts.First. An idle connection has
// no deadline, even after empty lines. A request's time begins only if a part has arrived and the rest is
// missing, because most requests arrive in one piece and need no clock.
func (c *Conn) Read(p []byte) (int, error) {
	c.busy.Store(false)
	if c.set.stopping.Load() {
		return 0, io.EOF
	}
	c.releaseAnswer()
	c.asked = !c.onlyBlank(p)
	switch {
	case c.asked && c.unbegun:
		c.wanted, c.unbegun = time.Now().Add(c.set.cfg.Timeouts.Request), false
	case c.kept && !c.asked:
		c.wanted, c.unbegun = noDeadline, true
	}
	if c.wanted != c.deadline {
		if err := c.setDeadlineNow(c.wanted); err != nil {
			return 0, err
		}
	}
	if !c.inHead && !c.reserveBody(p) {
		return 0, ErrTooManyBodies
	}
	n, err := c.Conn.Read(p)
	if !c.inHead {
		c.received += n
	}
	if c.noteBlank(p[:n]) {
		c.asked = true
	}
	if err != nil {
		c.timedOut = errors.Is(err, os.ErrDeadlineExceeded)
	}
	return n, err
}

// onlyBlank reports whether fasthttp has read only empty lines of the next request. It reads a head into
// the free part of a buffer of MaxHead bytes, so the used part contains the last bytes.
func (c *Conn) onlyBlank(p []byte) bool {
	return c.inHead && MaxHead-len(p) <= c.blank
}

// noteBlank counts the empty lines at the end of b, and reports whether b has anything else.
func (c *Conn) noteBlank(b []byte) (more bool) {
	n := len(b) - len(bytes.TrimRight(b, "\r\n"))
	if n < len(b) {
		c.blank = n
		return true
	}
	c.blank += n
	return false
}

// SetReadDeadline is called by fasthttp when a head is complete. The body has the rest of the request's time.
func (c *Conn) SetReadDeadline(time.Time) error {
	c.inHead = false
	return nil
}

// BeginRequest records that a request is complete, so the next bytes belong to another head.
func (c *Conn) BeginRequest() {
	c.busy.Store(true)
	c.inHead, c.kept, c.unbegun, c.asked = true, true, true, false
	c.releaseAnswer()
	c.releaseBody()
}

// TimedOut reports whether the request was not complete in time.
func (c *Conn) TimedOut() bool { return c.timedOut }

// Asked reports whether a part of a request has arrived. If not, later answers are discarded.
func (c *Conn) Asked() bool {
	c.mute = c.mute || !c.asked
	return c.asked
}

// Linger lets Close wait for a client that still sends.
func (c *Conn) Linger() { c.linger = true }

func (c *Conn) setDeadlineNow(t time.Time) error {
	c.deadline = t
	return c.Conn.SetReadDeadline(t)
}

// notifyClose tells the owner and the stream that the connection has closed. The guard may call it while the serving goroutine blocks.
func (c *Conn) notifyClose() {
	c.owner.Disconnected()
	if st := c.stream.Load(); st != nil {
		st.OnDrop()
	}
}

// Close closes the connection and notifies its owner. fasthttp calls it, or the end of a stream.
func (c *Conn) Close() error {
	if c.closed {
		return nil
	}
	c.closed = true
	c.releaseAnswer()
	c.releaseBody()
	c.notifyClose()
	if c.linger {
		c.lingerOn()
	}
	err := c.Conn.Close()
	c.set.forget(c)
	if st := c.stream.Load(); st != nil {
		st.closed()
	}
	return err
}

// lingerOn lets a client that still sends read the answer, because a close at once would reset the connection.
func (c *Conn) lingerOn() {
	if h, ok := c.Conn.(interface{ CloseWrite() error }); !ok || h.CloseWrite() != nil {
		return
	}
	_ = c.Conn.SetReadDeadline(time.Now().Add(c.set.cfg.Timeouts.Linger))
	_, _ = io.CopyN(io.Discard, c.Conn, lingerBytes)
}

// cut closes the connection from another goroutine. The serving goroutine or the guard of the call notices it. It does not wait, as the close
// of a connection with TLS would.
func (c *Conn) cut() {
	_ = c.under.Close()
}

// stop ends the connection as the sidecar stops, from another goroutine: now if it is idle, otherwise after its answer.
func (c *Conn) stop() {
	if st := c.stream.Load(); st != nil {
		st.OnStop()
		return
	}
	if !c.busy.Load() {
		c.cut()
	}
}

// Peer is the process at the other end of a Unix socket.
type Peer struct {
	Known bool
	UID   uint32
	PID   int32
}

// LogValue shows the process, or "unknown".
func (p Peer) LogValue() slog.Value {
	if !p.Known {
		return slog.StringValue("unknown")
	}
	return slog.GroupValue(slog.Int64("pid", int64(p.PID)), slog.Int64("uid", int64(p.UID)))
}
