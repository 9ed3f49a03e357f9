package proxy

import (
	"bytes"
	"strconv"

	"github.com/locksidecar/locksidecar/lease"
)

const sessionsPath = "/v1/sessions/"

// maxSessionEvents is the most events that wait for the reader of a session's
// stream: more than the locks that a session may hold by default, as all may be
// lost at once.
const maxSessionEvents = 1 << 17

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
	if p := k.canStream(); p != nil {
		return p
	}
	c, st := k.c, newStream(k.c, maxSessionEvents)
	o.Explicit = true
	o.OnLost = func(l lease.Lost) { st.push(lostEvent(l)) }
	o.OnStop = func(s lease.Stop) { st.push(stopEvent(s)) }
	o.OnEnd = func(reason lease.EndReason) { st.finish(reason == lease.EndDropped) }
	s, err := k.srv.locks.OpenSession(o)
	if err != nil {
		return k.failed(err)
	}
	st.log = k.logger().With("session", s.Name())
	st.onDrop = func() { c.end(s) }
	st.onLeave = func() { s.End(lease.EndShutdown) }
	st.open(sessionEvent{s})
	k.stream(st, nil)
	return nil
}

// canStream refuses those who cannot read a stream.
func (k *call) canStream() *problem {
	if !k.ctx.Request.Header.IsHTTP11() {
		return invalid("an event stream needs HTTP/1.1")
	}
	return nil
}

// sessionEvent tells a session's id.
type sessionEvent struct{ Session }

func (e sessionEvent) appendTo(b []byte) []byte {
	b = append(openEvent(b, "session"), `{"session":`...)
	b = appendString(b, e.ID())
	b = append(b, `,"ttl_ms":`...)
	b = appendMillis(b, e.TTL())
	b = append(b, `,"expires_in_ms":`...)
	b = appendMillis(b, e.ExpiresIn())
	return closeEvent(append(b, '}'))
}

// lostEvent tells that the session has lost a lock.
type lostEvent lease.Lost

func (e lostEvent) appendTo(b []byte) []byte {
	b = appendLock(openEvent(b, "lost"), e.Key, e.Token)
	b = append(b, `,"reason":`...)
	b = appendString(b, string(e.Reason))
	return closeEvent(append(b, '}'))
}

// stopEvent tells that somebody asks the session to stop.
type stopEvent lease.Stop

func (e stopEvent) appendTo(b []byte) []byte {
	b = appendLock(openEvent(b, "stop"), e.Key, e.Token)
	b = append(b, `,"reason":`...)
	b = appendReason(b, e.Reason)
	return closeEvent(append(b, '}'))
}

// appendLock begins the data of an event that is about a lock of the session.
func appendLock(b []byte, key string, token int64) []byte {
	b = append(b, `{"key":`...)
	b = appendString(b, key)
	b = append(b, `,"token":`...)
	return strconv.AppendInt(b, token, 10)
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
