package proxy

import (
	"bytes"

	"github.com/locksidecar/locksidecar/lease"
	"github.com/locksidecar/locksidecar/proxy/internal/wire"
)

const sessionsPath = "/v1/sessions/"

// maxSessionEvents limits the queue of a session's stream: more than its locks by default,
// as all may be lost at once.
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
		return wire.NotFound("there is nothing at this path; a session is /v1/sessions/{id}")
	}
	if p := k.only("DELETE"); p != nil {
		return p
	}
	return k.deleteSession(string(id))
}

// openSession is POST /v1/sessions: the connection turns into an event stream.
func (k *call) openSession() *wire.Problem {
	if p := wire.ParseQuery(k.Query, nil); p != nil {
		return p
	}
	o, p := wire.ParseSession(k.ctx.Request.Body())
	if p != nil {
		return p
	}
	if p := k.canStream(); p != nil {
		return p
	}
	c, st := k.c, newStream(k.c, maxSessionEvents)
	o.Explicit = true
	o.OnLost = func(l lease.Lost) { st.push(wire.LostEvent(l)) }
	o.OnStop = func(s lease.Stop) { st.push(wire.StopEvent(s)) }
	o.OnEnd = func(reason lease.EndReason) { st.finish(reason == lease.EndDropped) }
	s, err := k.srv.locks.OpenSession(o)
	if err != nil {
		return k.failed(err)
	}
	st.log = k.logger().With("session", s.Name())
	st.onDrop = func() { c.end(s) }
	st.onLeave = func() { s.End(lease.EndShutdown) }
	st.open(wire.SessionEvent{Session: s})
	k.stream(st, nil)
	return nil
}

// canStream refuses clients that cannot read a stream.
func (k *call) canStream() *wire.Problem {
	if !k.ctx.Request.Header.IsHTTP11() {
		return wire.Invalid("an event stream needs HTTP/1.1")
	}
	return nil
}

// deleteSession is DELETE /v1/sessions/{id}. It answers when everything is released.
func (k *call) deleteSession(id string) *wire.Problem {
	if p := k.noInput(); p != nil {
		return p
	}
	s, err := k.srv.locks.Session(id)
	if err != nil {
		return wire.SessionEnded("no session lives under this id")
	}
	left := k.c.watch.begin(true)
	select {
	case <-s.End(lease.EndDeleted):
	case <-left.Done():
	}
	k.c.watch.end()
	b := append(k.buffer(), `{"session":`...)
	b = wire.AppendString(b, id)
	k.answer(append(b, `,"ended":true}`...))
	return nil
}
