package etcd

import (
	"context"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/locksidecar/locksidecar/store/cas"
)

// tries is how often a read or a renewal is sent, each time to another server if there are several.
const tries = 3

// write sends a request that changes something, once.
func (b *Server) write(ctx context.Context, op string, send func(context.Context, *conn) error) error {
	ctx, cancel := context.WithTimeout(ctx, b.config.Timeout)
	defer cancel()
	return b.request(ctx, op, true, send)
}

// repeat sends a request that may be carried out several times, until an answer comes. changes is whether it changes
// something.
func (b *Server) repeat(ctx context.Context, op string, changes bool, send func(context.Context, *conn) error) error {
	ctx, cancel := context.WithTimeout(ctx, b.config.Timeout)
	defer cancel()
	var err error
	for try := range tries {
		limited, cancel := context.WithTimeout(ctx, b.config.Timeout/tries)
		err = b.request(limited, op, changes, send)
		cancel()
		if err == nil || !transient(err) || ctx.Err() != nil || try == tries-1 {
			break
		}
		cas.Pause(ctx, cas.FirstPause<<try)
	}
	return err
}

// transient reports whether a request may succeed on another server, or a moment later.
func transient(err error) bool {
	return slices.Contains([]codes.Code{codes.Unavailable, codes.DeadlineExceeded, codes.Internal, codes.Unknown}, status.Code(err))
}

// request sends one request, with its span and its metrics, and classifies its error. A server that is slow or fails is
// checked.
func (b *Server) request(ctx context.Context, op string, changes bool, send func(context.Context, *conn) error) (err error) {
	if err := b.Ready(); err != nil {
		return classify(op, err, false)
	}
	c := b.conn.Load()
	if c == nil {
		return classify(op, errNotReached, false)
	}
	name := "etcd_" + op
	ctx, end := b.span(ctx, name)
	ctx, sent := noteSent(ctx)
	began := time.Now()
	slow := time.AfterFunc(patience, b.Doubt)
	err = b.naming(c.loggedIn(ctx, func() error { return send(ctx, c) }))
	slow.Stop()
	end(err)
	b.config.Metrics.Statement(ctx, name, time.Since(began), err)
	if err != nil && (transient(err) || notLetIn(err)) {
		b.Doubt()
	}
	return classify(op, err, changes && sent.Load())
}
