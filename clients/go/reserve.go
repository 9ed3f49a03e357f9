package locksidecar

import (
	"context"
	"net"
	"time"
)

// reserve is one connection that is kept, for calls that must get through if the waiting calls have taken all file descriptors.
type reserve struct {
	dial func(ctx context.Context) (net.Conn, error)
	// turn has a place for one call at a time, which owns the rest.
	turn   chan struct{}
	conn   *conn // nil: none
	closed bool
}

func newReserve(dial func(ctx context.Context) (net.Conn, error)) *reserve {
	return &reserve{dial: dial, turn: make(chan struct{}, 1)}
}

// exchange makes a call. The end of ctx ends it.
func (r *reserve) exchange(ctx context.Context, of *request, ends time.Time, repeatable bool, sent *sendError) (*answer, error) {
	select {
	case r.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() { <-r.turn }()
	if r.closed {
		return nil, net.ErrClosed
	}
	if r.conn != nil && !r.conn.isOpen() {
		r.drop()
	}
	if k := r.conn; k != nil {
		a, err := r.call(ctx, of, ends)
		if err == nil || !k.maySendAgain(repeatable, err) || ctx.Err() != nil {
			return a, err
		}
		sent.note(k, err)
	}
	conn, err := r.dial(ctx)
	if err != nil {
		return nil, err
	}
	r.conn = newConn(conn)
	return r.call(ctx, of, ends)
}

// call makes a call on the connection, and keeps it if it can have another one.
func (r *reserve) call(ctx context.Context, of *request, ends time.Time) (*answer, error) {
	stop := r.conn.limitTo(ctx, nil, ends)
	a, err := r.conn.exchange(of)
	r.conn.unused = time.Now()
	if !stop() || err != nil || a.Close {
		r.drop()
	}
	return a, err
}

func (r *reserve) drop() {
	if r.conn != nil {
		_ = r.conn.Close()
	}
	r.conn = nil
}

// close waits for a call under way, which its context ends. There is no call after it.
func (r *reserve) close() {
	r.turn <- struct{}{}
	defer func() { <-r.turn }()
	r.closed = true
	r.drop()
}
