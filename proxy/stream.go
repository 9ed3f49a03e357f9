package proxy

import (
	"runtime/debug"
	"strconv"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/lease"
)

const (
	// maxQueued is the most events that wait for the reader of a stream: more
	// than the locks that a session may hold by default, as all may be lost at
	// once.
	maxQueued = 1 << 17
	// eventsPerWrite is how many events are written at once; each write has the
	// whole time limit.
	eventsPerWrite = 256
)

// streamHead begins the answer of POST /v1/sessions. The comment behind it makes
// proxies and clients see at once that the stream is there.
const streamHead = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-store\r\n" +
	"Transfer-Encoding: chunked\r\n\r\n"

const (
	comment   = ":\n\n"
	lastChunk = "0\r\n\r\n"
)

// stream is the event stream of an explicit session. The session tells it what
// happens, and never waits for it.
type stream struct {
	c       *conn
	session Session
	wake    chan struct{}

	mu     sync.Mutex
	queue  []lease.Lost
	ended  bool
	reason lease.EndReason
}

func newStream(c *conn) *stream {
	return &stream{c: c, wake: make(chan struct{}, 1)}
}

// onLost is called by the session, and must not block.
func (st *stream) onLost(l lease.Lost) {
	st.mu.Lock()
	full := len(st.queue) >= maxQueued
	if !full {
		st.queue = append(st.queue, l)
	}
	st.mu.Unlock()
	if full {
		st.c.cut()
		return
	}
	st.ring()
}

// onEnd is called by the session, and must not block.
func (st *stream) onEnd(reason lease.EndReason) {
	st.mu.Lock()
	st.ended, st.reason = true, reason
	st.mu.Unlock()
	st.ring()
}

func (st *stream) ring() {
	select {
	case st.wake <- struct{}{}:
	default:
	}
}

// take takes some events from the queue. more: there are others, or the end.
func (st *stream) take() (events []lease.Lost, more, ended bool) {
	st.mu.Lock()
	defer st.mu.Unlock()
	n := min(len(st.queue), eventsPerWrite)
	events, st.queue = st.queue[:n:n], st.queue[n:]
	if len(st.queue) == 0 {
		st.queue = nil
	}
	return events, len(st.queue) > 0, st.ended && len(st.queue) == 0
}

// serve writes the stream until the session ends or the reader has gone. The
// connection closes when it returns.
func (st *stream) serve() {
	defer func() {
		if v := recover(); v != nil {
			st.c.srv.log.Error("panic in an event stream", "panic", v, "stack", string(debug.Stack()))
		}
	}()
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		if st.c.raw != nil && awaitClose(st.c.raw) {
			st.c.drop()
		}
	}()
	if err := st.run(); err != nil {
		st.c.srv.log.Info("event stream dropped: its reader has gone or is too slow",
			"session", st.session.Name(), "error", err)
	}
	_ = st.c.Conn.SetReadDeadline(pastDeadline)
	<-watched
}

func (st *stream) run() error {
	if err := st.write(st.appendOpening(nil)); err != nil {
		return err
	}
	heartbeat := time.NewTicker(st.c.srv.cfg.Timeouts.Heartbeat)
	defer heartbeat.Stop()
	for {
		beat := false
		select {
		case <-st.wake:
		case <-heartbeat.C:
			beat = true
		}
		if ended, err := st.flush(beat); ended || err != nil {
			return err
		}
	}
}

// flush writes all that is queued, with a comment line before it if it is time,
// and the end of the stream when there is nothing more to come.
func (st *stream) flush(beat bool) (ended bool, err error) {
	for {
		events, more, ended := st.take()
		b := appendEvents(nil, events, beat)
		if ended {
			b = append(b, lastChunk...)
		}
		if err := st.write(b); err != nil || ended || !more {
			return ended, err
		}
		beat = false
	}
}

// write gives the reader some time to take b.
func (st *stream) write(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	_ = st.c.Conn.SetWriteDeadline(time.Now().Add(st.c.srv.cfg.Timeouts.StreamWrite))
	_, err := st.c.Conn.Write(b)
	if err != nil && st.wasDropped() {
		return nil // the watch was first
	}
	return err
}

// wasDropped tells whether the session has ended because its reader went.
func (st *stream) wasDropped() bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.ended && st.reason == lease.EndDropped
}

func (st *stream) appendOpening(b []byte) []byte {
	s := st.session
	event := append([]byte(comment), "event: session\ndata: {\"session\":"...)
	event = appendString(event, s.ID())
	event = append(event, `,"ttl_ms":`...)
	event = appendMillis(event, s.TTL())
	event = append(event, `,"expires_in_ms":`...)
	event = appendMillis(event, s.ExpiresIn())
	event = append(event, "}\n\n"...)
	return appendChunk(append(b, streamHead...), event)
}

// appendEvents appends one chunk with the events, nothing if there is none.
func appendEvents(b []byte, events []lease.Lost, beat bool) []byte {
	var text []byte
	if beat {
		text = append(text, comment...)
	}
	for i := range events {
		text = append(text, "event: lost\ndata: "...)
		text = appendLost(text, &events[i])
		text = append(text, "\n\n"...)
	}
	if len(text) == 0 {
		return b
	}
	return appendChunk(b, text)
}

// appendChunk frames text as a chunk of HTTP/1.1.
func appendChunk(b, text []byte) []byte {
	b = strconv.AppendInt(b, int64(len(text)), 16)
	b = append(b, "\r\n"...)
	b = append(b, text...)
	return append(b, "\r\n"...)
}
