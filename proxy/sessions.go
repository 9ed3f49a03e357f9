package proxy

import (
	"bytes"
	"net"

	"github.com/locksidecar/locksidecar/lease"
)

const sessionsPath = "/v1/sessions/"

func (k *call) routeSessions() *problem {
	id, one := bytes.CutPrefix(k.path, []byte(sessionsPath))
	if !one {
		if p := k.only("POST"); p != nil {
			return p
		}
		return k.openSession()
	}
	if len(id) == 0 || bytes.IndexByte(id, '/') >= 0 {
		return notFound("there is nothing at this path; a session is /v1/sessions/{id}")
	}
	if p := k.only("DELETE"); p != nil {
		return p
	}
	return k.deleteSession(string(id))
}

// openSession is POST /v1/sessions: the connection turns into an event stream.
func (k *call) openSession() *problem {
	if p := parseQuery(k.query, nil); p != nil {
		return p
	}
	o, p := parseSession(k.ctx.Request.Body())
	if p != nil {
		return p
	}
	if !k.ctx.Request.Header.IsHTTP11() {
		return invalid("an event stream needs HTTP/1.1")
	}
	st := newStream(k.c)
	o.Explicit, o.OnLost, o.OnEnd = true, st.onLost, st.onEnd
	s, err := k.srv.locks.OpenSession(o)
	if err != nil {
		return k.failed(err)
	}
	st.session = s
	k.c.stream.Store(st)
	if k.srv.stopping.Load() { // Stop may not have seen the stream
		s.End(lease.EndShutdown)
	}
	// The connection is fasthttp's no more, but Stop still waits for it.
	served := make(chan struct{})
	k.srv.serving.Go(func() { <-served })
	k.c.onClose = func() { close(served) }
	k.ctx.HijackSetNoResponse(true)
	k.ctx.Hijack(func(net.Conn) { st.serve() })
	return nil
}

// deleteSession is DELETE /v1/sessions/{id}. It answers when all that the
// session held is released.
func (k *call) deleteSession(id string) *problem {
	if p := k.noInput(); p != nil {
		return p
	}
	s, err := k.srv.locks.Session(id)
	if err != nil {
		return sessionEnded("no session lives under this id")
	}
	left := k.c.watch.begin(true)
	select {
	case <-s.End(lease.EndDeleted):
	case <-left.Done():
	}
	k.c.watch.end()
	b := append(k.buffer(), `{"session":`...)
	b = appendString(b, id)
	k.answer(append(b, `,"ended":true}`...))
	return nil
}
