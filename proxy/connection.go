package proxy

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/locksidecar/locksidecar/internal/tracing"
	"github.com/locksidecar/locksidecar/lease"
	"github.com/locksidecar/locksidecar/proxy/internal/conn"
	"github.com/locksidecar/locksidecar/proxy/internal/wire"
)

const (
	// maxKeptBody is the capacity up to which a body's buffer stays in memory during a call.
	maxKeptBody = 1 << 10
	// maxKeptHead is the length up to which a head does. fasthttp needs up to six times as much for it, in buffers of its lines.
	maxKeptHead = 2 << 10
)

// connection is a client's connection with its session, its call, and its grants whose answers are not written.
type connection struct {
	*conn.Conn
	srv *Server
	// session is the connection's own; nil before the first acquire.
	session   *lease.Session
	call      call
	unwritten []unwrittenGrant
	delivery  delivery
}

func (s *Server) own(nc *conn.Conn) conn.Owner {
	c := &connection{Conn: nc, srv: s}
	c.call.srv, c.call.c, c.delivery.c = s, c, c
	return c
}

// serve serves a connection until it closes, or an event stream takes it over.
func (s *Server) serve(nc net.Conn) {
	server := s.http
	if nc.(*connection).Kind == conn.TCP {
		server = s.overTCP
	}
	if err := server.ServeConn(nc); err != nil {
		s.log.Debug("connection ended", "error", unquoted(err))
	}
}

// Disconnected ends the connection's session. The guard of a call, or a stream's goroutine, and the serving goroutine may both see the close and come here.
func (c *connection) Disconnected() { c.end(c.session) }

// holds reports whether the connection's own session holds locks.
func (c *connection) holds() bool { return c.session != nil && c.session.Held() > 0 }

// end ends a session, which releases all its locks. Only the first call ends it: see [lease.Session.End].
func (c *connection) end(s *lease.Session) {
	if s == nil {
		return
	}
	held := s.Held()
	s.End(c.srv.endReason())
	if held > 0 {
		c.srv.log.Warn("connection closed while it held locks, which are now released",
			"locks", held, "session", s.Name(), "age", time.Since(c.Born).Round(time.Millisecond).String(),
			"pid", c.Peer.PID, "uid", c.Peer.UID, "stopping", c.srv.conns.Stopping())
	}
}

// Close closes the connection and ends its session. fasthttp calls it, or the end of a stream.
func (c *connection) Close() error {
	if c.delivery.passed && !c.Asked() {
		c.forgetUnwritten()
	}
	c.handBackUnwritten()
	return c.Conn.Close()
}

// begin returns the context of a call that goes on if its caller leaves, with its span. The connection's EndCall must follow.
func (k *call) begin() context.Context { return k.beginCall(false) }

// beginCancelable is begin for a call whose context ends when the caller leaves.
func (k *call) beginCancelable() context.Context { return k.beginCall(true) }

func (k *call) beginCall(cancelable bool) context.Context {
	k.slim()
	if k.span == nil {
		return k.c.BeginCall(context.Background(), cancelable)
	}
	return k.c.BeginCall(k.span.ctx, cancelable)
}

// slim gives up a long body, which is parsed, and the storage of a long head, because a call may wait for hours, and a connection be
// idle for days. It keeps what is used later.
func (k *call) slim() {
	k.ctx.Request.ReleaseBody(maxKeptBody)
	h := &k.ctx.Request.Header
	if len(h.RawHeaders()) <= maxKeptHead {
		return
	}
	k.Target = wire.Target{Path: bytes.Clone(k.Path)}
	k.trace, k.session, k.state, k.baggage, k.token = bytes.Clone(k.trace), nil, nil, nil, nil
	method, protocol, host := string(h.Method()), string(h.Protocol()), string(h.Host())
	*h = fasthttp.RequestHeader{}
	h.SetMethod(method)
	h.SetProtocol(protocol)
	h.SetHost(host)
}

// unwrittenGrant is a grant that outlives the connection, and whose answer is not written yet.
type unwrittenGrant struct {
	session     *lease.Session
	grant       lease.Grant
	traceparent string // of the call
	// passed, if not nil, is the server that has made the grant. The other fields are empty then.
	passed *otherServer
}

func (c *connection) trackDelivery(s *lease.Session, g lease.Grant, traceparent string) {
	c.unwritten = append(c.unwritten, unwrittenGrant{session: s, grant: g, traceparent: traceparent})
}

// handBackUnwritten hands back the grants whose answers will not be written, because their callers do not
// know them.
func (c *connection) handBackUnwritten() {
	for _, u := range c.unwritten {
		if u.passed != nil {
			u.passed.handBack()
			continue
		}
		tracing.Logger(c.srv.log, u.traceparent).Info("grant handed back: its caller left before the answer was written",
			"key", u.grant.Key, "token", u.grant.Token)
		c.srv.locks.HandBack(u.session, u.grant)
	}
	c.unwritten = nil
}

// forgetUnwritten is called when the grants' answer is written.
func (c *connection) forgetUnwritten() {
	for _, u := range c.unwritten {
		if u.passed != nil {
			u.passed.close()
		}
	}
	clear(c.unwritten)
	c.unwritten = c.unwritten[:0]
}

// delivery is the body of an answer with unwritten grants. It is written at once. Otherwise fasthttp would keep it
// until the pipeline is empty. A write of several answers would not show which of them were written.
type delivery struct {
	c    *connection
	body []byte
	// passed: the answer is written to the server that has passed the call on. That server may still say that its caller has left: see call.passedOn.
	passed bool
}

// WriteTo is called by fasthttp, with its buffer.
func (d *delivery) WriteTo(w io.Writer) (int64, error) {
	n, err := w.Write(d.body)
	if err == nil {
		err = w.(*bufio.Writer).Flush()
	}
	switch {
	case err != nil:
	case d.c.Kind == conn.Passed:
		d.passed = true
	default:
		d.c.forgetUnwritten()
	}
	d.body = nil
	return int64(n), err
}

// Read is not called, because WriteTo exists.
func (*delivery) Read([]byte) (int, error) { return 0, io.EOF }
