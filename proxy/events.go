package proxy

import (
	"context"
	"runtime/debug"
	"time"

	"github.com/locksidecar/locksidecar/internal/tracing"
	"github.com/locksidecar/locksidecar/lease"
	"github.com/locksidecar/locksidecar/proxy/internal/conn"
	"github.com/locksidecar/locksidecar/proxy/internal/wire"
)

// maxKeyEvents limits the queue of a key's stream. An event may have some KiB.
const maxKeyEvents = 1 << 10

type subscription struct {
	srv *Server
	key string
	// traceparent is the call's.
	traceparent string

	st     *conn.Stream
	cancel context.CancelFunc
	// done is closed when the watch has begun or has failed.
	done    chan struct{}
	stop    func() // nil if it has failed
	problem *wire.Problem
}

// keyEvents is GET /v1/locks/{key}/events. If it fails after Timeouts.Subscribe, the failure is the
// stream's only event.
func (k *call) keyEvents(key string) *wire.Problem {
	if p := k.noInput(); p != nil {
		return p
	}
	s, p := k.currentSession()
	if p != nil {
		return p
	}
	if p := k.canStream(); p != nil {
		return p
	}
	if p := k.memoryLow(); p != nil {
		return p
	}
	ctx, cancel := context.WithCancel(context.Background())
	st := k.c.NewStream(maxKeyEvents)
	st.Log = k.logger().With("key", key)
	st.OnDrop = func() { st.Finish(true) }
	st.OnStop = func() { st.Finish(false) }
	u := &subscription{
		srv: k.srv, key: key, traceparent: k.traceparent(), st: st, cancel: cancel, done: make(chan struct{}),
	}
	go u.run(ctx, s)

	patience := time.NewTimer(k.srv.cfg.Timeouts.Subscribe)
	defer patience.Stop()
	select {
	case <-u.done:
		if u.problem != nil {
			cancel()
			return u.problem
		}
	case <-patience.C:
	}
	st.OnClose = u.end
	k.stream(st)
	return nil
}

// run begins the watch. Events that arrived before the state are sent after it.
func (u *subscription) run(ctx context.Context, s *lease.Session) {
	defer close(u.done)
	defer func() {
		if v := recover(); v != nil {
			tracing.Logger(u.srv.log, u.traceparent).Error("panic in a call", "key", u.key, "panic", v, "stack", string(debug.Stack()))
			u.fail(wire.Internal())
		}
	}()
	notify := func(e lease.Event) { u.st.Push(wire.KeyEvent(e)) }
	v, stop, err := u.srv.locks.Watch(ctx, s, u.key, notify)
	if err != nil {
		u.fail(u.srv.problemFor(err, "watch", u.key, u.traceparent))
		return
	}
	u.stop = stop
	u.st.Open(wire.StateEvent(v))
}

func (u *subscription) fail(p *wire.Problem) {
	u.problem = p
	u.st.Open(problemEvent{p, u.srv})
	u.st.Finish(false)
}

// end ends the watch, because the connection has closed.
func (u *subscription) end() {
	u.cancel()
	<-u.done
	if u.stop != nil {
		u.stop()
	}
}

// problemEvent is an error that came too late to be a status.
type problemEvent struct {
	*wire.Problem
	srv *Server
}

func (e problemEvent) AppendTo(b []byte) []byte {
	e.srv.countProblem(e.Code) // a status is counted elsewhere
	return e.AppendEvent(b)
}
