package locksidecar

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"
)

const (
	// maxIdle limits the connections that are kept for the next calls, and idleTimeout for how long.
	maxIdle     = 64
	idleTimeout = 30 * time.Second
	// maxHead is the room for the head of an answer.
	maxHead = 64 << 10
)

// past is a deadline that ends what is under way.
var past = time.Unix(1, 0)

// request is a request that may be sent several times.
type request struct {
	*http.Request

	body []byte // nil: none
}

// answer is a complete answer. Its body is in text.
type answer struct {
	*http.Response

	text []byte
}

// conn is a connection to the sidecar. It carries one call at a time, in the goroutine of its caller. net/http writes and reads the messages, but not with its
// Transport, which has two goroutines for each connection, and wakes both for each call: docs/performance.md says what that costs.
type conn struct {
	net.Conn

	raw      syscall.RawConn // of the socket, also below TLS; nil: it is none
	limit    *io.LimitedReader
	answers  *bufio.Reader
	requests *bufio.Writer
	began    bool      // a byte of the last request was sent
	unused   time.Time // since when
}

func newConn(c net.Conn) *conn {
	k := &conn{Conn: c, limit: &io.LimitedReader{R: c}}
	k.answers, k.requests = bufio.NewReader(k.limit), bufio.NewWriter(k)
	if turn, is := c.(*inTurn); is {
		c = turn.Conn
	}
	if encrypted, is := c.(*tls.Conn); is {
		c = encrypted.NetConn()
	}
	if system, is := c.(syscall.Conn); is {
		k.raw, _ = system.SyscallConn()
	}
	return k
}

// limitTo limits the next exchange: to its caller, to until (nil: to nothing more) and to a time (zero: none). The returned function ends the limits, and
// reports whether the connection can still be used.
func (k *conn) limitTo(caller, until context.Context, ends time.Time) func() bool {
	_ = k.SetDeadline(ends) // before the contexts, whose ends set another one
	stops := make([]func() bool, 0, 2)
	for _, ctx := range []context.Context{caller, until} {
		if ctx != nil && ctx.Done() != nil {
			stops = append(stops, context.AfterFunc(ctx, func() { _ = k.SetDeadline(past) }))
		}
	}
	return func() bool {
		usable := true
		for _, stop := range stops {
			usable = stop() && usable
		}
		return usable
	}
}

// Write also notes whether anything was sent.
func (k *conn) Write(b []byte) (int, error) {
	n, err := k.Conn.Write(b)
	k.began = k.began || n > 0
	return n, err
}

// exchange sends a request, and reads the whole answer.
func (k *conn) exchange(r *request) (*answer, error) {
	resp, err := k.begin(r) //nolint:bodyclose // it is read whole, and the connection is another's
	if err != nil {
		return nil, err
	}
	a := &answer{Response: resp}
	if n := resp.ContentLength; n >= 0 && n <= maxAnswer && r.Method != http.MethodHead {
		a.text = make([]byte, n)
		_, err = io.ReadFull(resp.Body, a.text)
	} else {
		a.text, err = io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	}
	if len(a.text) > maxAnswer {
		resp.Close = true // the rest is not read
	}
	return a, timely(err)
}

// begin sends a request, and reads the head of the answer.
func (k *conn) begin(r *request) (*http.Response, error) {
	if r.body != nil {
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(r.body)), int64(len(r.body))
	}
	k.began = false
	err := r.Write(k.requests)
	if err == nil {
		err = k.requests.Flush()
	}
	if err != nil {
		return nil, timely(err)
	}
	k.limit.N = maxHead + maxAnswer + 1
	for {
		resp, err := http.ReadResponse(k.answers, r.Request)
		if err != nil || resp.StatusCode/100 != 1 {
			return resp, timely(err)
		}
		// The answer follows. A proxy may send such a head before it. It has no body.
	}
}

// endless: the rest of the answer is a stream.
func (k *conn) endless() {
	k.limit.N = math.MaxInt64
	_ = k.SetDeadline(time.Time{})
}

// timely names the end of a call's time.
func timely(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return errTimeout
	}
	return err
}

// The errors of Windows. Its syscall.ECONNRESET and the like are numbers that Go has made up, and no call returns them.
const (
	errWSAConnAborted = syscall.Errno(10053)
	errWSAConnReset   = syscall.Errno(10054)
	errWSAConnRefused = syscall.Errno(10061)
	errWSAExhausted   = syscall.Errno(10024)
)

// isBroken reports whether the sidecar has ended a connection.
func isBroken(err error) bool {
	return slices.ContainsFunc([]error{io.EOF, io.ErrUnexpectedEOF, syscall.EPIPE, syscall.ECONNRESET, errWSAConnAborted, errWSAConnReset}, func(end error) bool {
		return errors.Is(err, end)
	})
}

// maySendAgain reports whether a call goes on with another connection after this one has failed: if the sidecar had ended it before the call, and the call
// may be carried out twice, or nothing of it was sent.
func (k *conn) maySendAgain(repeatable bool, err error) bool {
	return isBroken(err) && (repeatable || !k.began)
}

// isOpen reports whether the sidecar has kept the connection, after an answer: it sends nothing without a call. With TLS it may announce the end.
func (k *conn) isOpen() bool {
	return k.answers.Buffered() == 0 && (k.raw == nil || isQuiet(k))
}

const (
	// justUsed is how long a connection counts as open without a question that has to wait.
	justUsed = 10 * time.Millisecond
	// question is how long such a question waits. A deadline that is over before the read begins would answer without the read.
	question = 200 * time.Microsecond
)

// isQuietAfterAWait is isQuiet for systems that cannot read without waiting.
func (k *conn) isQuietAfterAWait() bool {
	if time.Since(k.unused) < justUsed {
		return true
	}
	k.limit.N = 1
	_ = k.SetReadDeadline(time.Now().Add(question))
	_, err := k.answers.Peek(1)
	return errors.Is(err, os.ErrDeadlineExceeded)
}

// pool is the connections of a client. The one that was used last is used next.
type pool struct {
	dialer func(ctx context.Context) (net.Conn, error)

	mu     sync.Mutex
	open   map[*conn]struct{}
	idle   []*conn
	tidier *time.Timer // nil: nothing is idle
	closed bool
}

func newPool(dialer func(ctx context.Context) (net.Conn, error)) *pool {
	return &pool{dialer: dialer, open: map[*conn]struct{}{}}
}

// dial makes a connection for a call.
func (p *pool) dial(ctx context.Context) (*conn, error) {
	c, err := p.dialer(ctx)
	if err != nil {
		return nil, err
	}
	k := newConn(c)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		_ = k.Close()
		return nil, net.ErrClosed
	}
	p.open[k] = struct{}{}
	return k, nil
}

// take returns a kept connection, or nil.
func (p *pool) take() *conn {
	for {
		p.mu.Lock()
		n := len(p.idle)
		if n == 0 {
			p.mu.Unlock()
			return nil
		}
		k := p.idle[n-1]
		p.idle[n-1] = nil
		p.idle = p.idle[:n-1]
		p.mu.Unlock()
		if k.isOpen() {
			return k
		}
		p.drop(k)
	}
}

// give keeps a connection for the next call.
func (p *pool) give(k *conn) {
	k.unused = time.Now()
	p.mu.Lock()
	kept := !p.closed && len(p.idle) < maxIdle
	if kept {
		p.idle = append(p.idle, k)
		if p.tidier == nil {
			p.tidier = time.AfterFunc(idleTimeout, p.tidy)
		}
	}
	p.mu.Unlock()
	if !kept {
		p.drop(k)
	}
}

// drop closes a connection.
func (p *pool) drop(k *conn) {
	p.mu.Lock()
	delete(p.open, k)
	p.mu.Unlock()
	_ = k.Close()
}

// tidy closes the connections that were unused for too long. The first has been unused for the longest time.
func (p *pool) tidy() {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for n < len(p.idle) && time.Since(p.idle[n].unused) >= idleTimeout {
		_ = p.idle[n].Close()
		delete(p.open, p.idle[n])
		n++
	}
	p.idle = append([]*conn(nil), p.idle[n:]...)
	p.tidier = nil
	if len(p.idle) > 0 && !p.closed {
		p.tidier = time.AfterFunc(idleTimeout-time.Since(p.idle[0].unused), p.tidy)
	}
}

// close ends all calls under way, and lets no other one begin.
func (p *pool) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for k := range p.open {
		_ = k.Close()
	}
	clear(p.open)
	p.idle = nil
	if p.tidier != nil {
		p.tidier.Stop()
	}
}
