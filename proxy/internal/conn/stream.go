package conn

import (
	"errors"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/proxy/internal/wire"
)

// eventsPerWrite limits the events of one write. Each write has the full time limit.
const eventsPerWrite = 256

// Stream is an answer of server-sent events, as long as its connection lives. A push never waits for the reader.
type Stream struct {
	// Log is for lines about the stream, with its attributes.
	Log *slog.Logger
	// OnDrop is called when the reader has left, OnStop when the sidecar stops. Both must cause a Finish.
	// They may be called repeatedly.
	OnDrop, OnStop func()
	// OnClose, if not nil, is called when the connection has closed.
	OnClose func()

	c     *Conn
	limit int // the greatest number of events that wait for the reader
	wake  chan struct{}

	mu    sync.Mutex
	queue []wire.Event
	// opened: the queue has the first event. Before that, nothing is written.
	opened bool
	// ended: further pushes are ignored. dropped: the reader has left. tooSlow: the reader did not keep up.
	ended, dropped, tooSlow bool
}

// NewStream makes a stream for the connection, with a queue of up to limit events.
func (c *Conn) NewStream(limit int) *Stream {
	return &Stream{c: c, limit: limit, wake: make(chan struct{}, 1)}
}

// Open sets the first event. Earlier pushes are sent after it.
func (st *Stream) Open(first wire.Event) {
	st.mu.Lock()
	if !st.opened && !st.ended {
		st.opened = true
		st.queue = append([]wire.Event{first}, st.queue...)
	}
	st.mu.Unlock()
	st.ring()
}

// Push adds an event. It does not block. A reader that is too slow is dropped.
func (st *Stream) Push(e wire.Event) {
	st.mu.Lock()
	full := len(st.queue) >= st.limit
	switch {
	case full:
		st.tooSlow = true
	case !st.ended:
		st.queue = append(st.queue, e)
	}
	st.mu.Unlock()
	if full {
		st.c.cut()
		return
	}
	st.ring()
}

// Finish ends the stream when the queue is written. It does not block. dropped: the reader has left.
func (st *Stream) Finish(dropped bool) {
	st.mu.Lock()
	st.ended, st.dropped = true, st.dropped || dropped
	st.mu.Unlock()
	st.ring()
}

func (st *Stream) ring() {
	select {
	case st.wake <- struct{}{}:
	default:
	}
}

func (st *Stream) take() (events []wire.Event, more, ended bool) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if !st.opened {
		return nil, false, st.ended
	}
	n := min(len(st.queue), eventsPerWrite)
	events, st.queue = st.queue[:n:n], st.queue[n:]
	if len(st.queue) == 0 {
		st.queue = nil
	}
	return events, len(st.queue) > 0, st.ended && len(st.queue) == 0
}

// Begin turns the connection into the stream. After fasthttp has returned, [Stream.Serve] must follow.
// Set.Stop waits until the connection has closed.
func (st *Stream) Begin() {
	st.c.stream.Store(st)
	st.c.set.serving.Add(1)
	if st.c.set.Stopping() { // Set.Stop may not have seen the stream
		st.OnStop()
	}
}

func (st *Stream) closed() {
	if st.OnClose != nil {
		st.OnClose()
	}
	st.c.set.serving.Done()
}

// Serve writes the stream until it is finished or the reader has left. The caller then closes the connection.
func (st *Stream) Serve() {
	defer func() {
		if v := recover(); v != nil {
			st.Log.Error("panic in an event stream", "panic", v, "stack", string(debug.Stack()))
		}
	}()
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		if st.c.raw != nil && awaitClose(st.c.raw, false) {
			st.c.notifyClose()
		}
	}()
	if err := st.failure(st.run()); err != nil {
		st.Log.Info("event stream dropped: its reader has gone or is too slow", "error", err)
	}
	_ = st.c.Conn.SetReadDeadline(pastDeadline)
	<-watched
}

func (st *Stream) run() error {
	if ended, err := st.flush([]byte(wire.StreamHead), true); ended || err != nil {
		return err
	}
	heartbeat := time.NewTicker(st.c.heartbeat())
	defer heartbeat.Stop()
	for {
		beat := false
		select {
		case <-st.wake:
		case <-heartbeat.C:
			// A reader that has not read the last bytes needs no comment. In an hour they would fill the socket, and it would count as too slow,
			// though nothing has happened that it should have read.
			beat = st.c.Kind != Unix || !hasUnread(st.c.raw)
		}
		if ended, err := st.flush(nil, beat); ended || err != nil {
			return err
		}
	}
}

// flush writes head, with beat a comment line, the queue, and the end of the body if the stream has ended.
func (st *Stream) flush(head []byte, beat bool) (ended bool, err error) {
	for {
		events, more, ended := st.take()
		b := wire.AppendEvents(head, events, beat)
		if ended {
			b = append(b, wire.LastChunk...)
		}
		if err := st.write(b); err != nil || ended || !more {
			return ended, err
		}
		head, beat = nil, false
	}
}

func (st *Stream) write(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	_ = st.c.Conn.SetWriteDeadline(time.Now().Add(st.c.set.cfg.Timeouts.StreamWrite))
	_, err := st.c.Conn.Write(b)
	return err
}

// errTooSlow: more events waited for the reader than the limit.
var errTooSlow = errors.New("too many events wait to be read")

// failure is the error for the log, or nil if the reader has left.
func (st *Stream) failure(err error) error {
	st.mu.Lock()
	defer st.mu.Unlock()
	switch {
	case st.tooSlow:
		return errTooSlow
	case st.dropped:
		return nil
	}
	return err
}
