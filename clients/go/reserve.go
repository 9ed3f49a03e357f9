package locksidecar

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"time"
)

// reserve is one connection that is kept, for calls that must get through if the waiting calls have taken all file descriptors. It is not of
// net/http's pool, which does not promise to keep a connection: on a busy machine it closes one that it could use.
type reserve struct {
	dial func(ctx context.Context) (net.Conn, error)
	// turn has a place for one call at a time, which owns the fields below.
	turn   chan struct{}
	conn   net.Conn // nil: none
	answer *bufio.Reader
}

func newReserve(dial func(ctx context.Context) (net.Conn, error)) *reserve {
	return &reserve{dial: dial, turn: make(chan struct{}, 1)}
}

// roundTrip makes a call, and reads its whole answer.
func (r *reserve) roundTrip(req *http.Request) (*http.Response, error) {
	ctx := req.Context()
	select {
	case r.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-r.turn }()
	if r.conn != nil && !r.isOpen() {
		r.drop()
	}
	if r.conn == nil {
		conn, err := r.dial(ctx)
		if err != nil {
			return nil, err
		}
		r.conn, r.answer = conn, bufio.NewReader(conn)
	}
	conn := r.conn
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	resp, err := r.exchange(req)
	if !stop() || err != nil || resp.Close {
		r.drop()
	}
	return resp, err
}

func (r *reserve) exchange(req *http.Request) (*http.Response, error) {
	if err := req.Write(r.conn); err != nil {
		return nil, err
	}
	resp, err := http.ReadResponse(r.answer, req)
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err == nil && len(body) > maxAnswer {
		resp.Close = true // the rest is not read
	}
	resp.Body = io.NopCloser(bytes.NewReader(body))
	return resp, err
}

// isOpen reports whether the sidecar has kept the connection: it sends nothing without a call.
func (r *reserve) isOpen() bool {
	_ = r.conn.SetReadDeadline(time.Now().Add(time.Microsecond))
	_, err := r.answer.Peek(1)
	_ = r.conn.SetReadDeadline(time.Time{})
	var limit net.Error
	return errors.As(err, &limit) && limit.Timeout()
}

func (r *reserve) drop() {
	if r.conn != nil {
		_ = r.conn.Close()
	}
	r.conn = nil
}

// close waits for a call under way, which its context ends.
func (r *reserve) close() {
	r.turn <- struct{}{}
	defer func() { <-r.turn }()
	r.drop()
}
