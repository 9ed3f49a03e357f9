package proxy

import (
	"bytes"
	"net"

	"github.com/locksidecar/locksidecar/lease"
	"github.com/locksidecar/locksidecar/proxy/internal/conn"
	"github.com/locksidecar/locksidecar/proxy/internal/wire"
)

const sessionsPath = "/v1/sessions/"

// maxSessionEvents is more than the default limit of a session's locks, because all may be lost at once.
const maxSessionEvents = 1 << 17

func (k *call) routeSessions() *wire.Problem {
	id, one := bytes.CutPrefix(k.Path, []byte(sessionsPath))
	if !one {
		if p := k.only("POST"); p != nil {
			return p
		}
		return k.openSession()
	}
	if len(id) == 0 || bytes.IndexByte(id, '/') >= 0 {
		return wire.Problemf(wire.CodeNotFound, "there is nothing at this path; a session is /v1/sessions/{id}")
	}
	if k.c.Kind == conn.Passed && k.ctx.IsGet() {
		return k.knowsSession(string(id))
	}
	if p := k.only("DELETE"); p != nil {
		return p
	}
	return k.deleteSession(string(id))
}

// openSession is POST /v1/sessions. It turns the connection into an event stream.
func (k *call) openSession() *wire.Problem {
	o, p := wire.ParseSession(k.Query, k.ctx.Request.Body())
	if p != nil {
		return p
	}
	if p := k.canStream(); p != nil {
		return p
	}
	if p := k.memoryLow(); p != nil {
		return p
	}
	c, st := k.c, k.c.NewStream(maxSessionEvents)
	o.Explicit, o.Reach = true, c.Reach
	o.OnLost = func(l lease.Lost) { st.Push(wire.LostEvent(l)) }
	o.OnStop = func(s lease.Stop) { st.Push(wire.StopEvent(s)) }
	o.OnEnd = func(reason lease.EndReason) { st.Finish(reason == lease.EndDropped) }
	s, err := k.srv.locks.OpenSession(o)
	if err != nil {
		return k.failed(err)
	}
	st.Log = k.logger().With("session", s.Name())
	st.OnDrop = func() { c.end(s) }
	st.OnStop = func() { s.End(lease.EndShutdown) }
	st.Open(wire.SessionEvent{Session: s})
	k.stream(st)
	return nil
}

func (k *call) canStream() *wire.Problem {
	if !k.ctx.Request.Header.IsHTTP11() {
		return wire.Invalid("an event stream needs HTTP/1.1")
	}
	return nil
}

// memoryLow refuses what would need memory for long. Releases, and all that ends something, go on.
func (k *call) memoryLow() *wire.Problem {
	if k.srv.cfg.MemoryLow == nil || !k.srv.cfg.MemoryLow() {
		return nil
	}
	return wire.Refusef(wire.CodeLimit, "the sidecar's memory is nearly used up (GOMEMLIMIT, or 2 GiB without it): until some is free, it grants no locks and opens no sessions or event streams")
}

func (k *call) stream(st *conn.Stream) {
	st.Begin()
	k.slim()
	k.ctx.HijackSetNoResponse(true)
	k.ctx.Hijack(func(net.Conn) { st.Serve() })
}

// deleteSession is DELETE /v1/sessions/{id}. It answers when all locks are released.
func (k *call) deleteSession(id string) *wire.Problem {
	if p := k.noInput(); p != nil {
		return p
	}
	s, err := k.srv.locks.Session(id)
	if err != nil {
		return wire.Problemf(wire.CodeSessionEnded, "there is no session with this id")
	}
	left := k.beginCancelable()
	select {
	case <-s.End(lease.EndDeleted):
	case <-left.Done():
	}
	k.c.EndCall()
	k.answer(wire.AppendEnded(k.buffer(), id))
	return nil
}
