package proxy

import (
	"errors"
	"log/slog"
	"net"
	"runtime/debug"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/proxy/internal/conn"
	"github.com/locksidecar/locksidecar/proxy/internal/wire"
)

// eventsPerWrite is how many events are written at once; each write has the whole time
// limit.
const eventsPerWrite = 256

// stream is an answer of server-sent events, as long as its connection. A push never waits
// for the reader.
type stream struct {
	c     *connection
	log   *slog.Logger // says what it is about
	limit int          // the most events that wait for the reader
	// onDrop is called when the reader has left, onLeave when the sidecar stops. Both let
	// the stream be finished, perhaps more than once.
	onDrop, onLeave func()
	wake            chan struct{}

	mu    sync.Mutex
	queue []wire.Event
	// opened: the queue has the first event. Nothing is taken before.
	opened bool
	// ended: nothing more is pushed. dropped: the reader has left. tooSlow: it was cut off
	// because it did not read.
	ended, dropped, tooSlow bool
}

func newStream(c *connection, limit int) *stream {
	return &stream{c: c, limit: limit, wake: make(chan struct{}, 1)}
}

// open sets the first event. Earlier pushes come after it.
func (st *stream) open(first wire.Event) {
	st.mu.Lock()
	if !st.opened && !st.ended {
		st.opened = true
		st.queue = append([]wire.Event{first}, st.queue...)
	}
	st.mu.Unlock()
	st.ring()
}

// push adds an event. It does not block: a reader that is too slow is dropped.
func (st *stream) push(e wire.Event) {
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

// finish ends the stream when the queue is written. It does not block.
func (st *stream) finish(dropped bool) {
	st.mu.Lock()
	st.ended, st.dropped = true, st.dropped || dropped
	st.mu.Unlock()
	st.ring()
}

func (st *stream) ring() {
	select {
	case st.wake <- struct{}{}:
	default:
	}
}

// take takes some events. more: the queue has others.
func (st *stream) take() (events []wire.Event, more, ended bool) {
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

// stream turns the connection into an event stream. closed, if not nil, is called when it
// has closed.
func (k *call) stream(st *stream, closed func()) {
	k.c.stream.Store(st)
	if k.srv.stopping.Load() { // Stop may not have seen the stream
		st.onLeave()
	}
	// fasthttp has left the connection, but Stop still waits for it.
	served := make(chan struct{})
	k.srv.serving.Go(func() { <-served })
	k.c.onClose = func() {
		if closed != nil {
			closed()
		}
		close(served)
	}
	k.ctx.HijackSetNoResponse(true)
	k.ctx.Hijack(func(net.Conn) { st.serve() })
}

// serve writes the stream until it is finished or the reader has left. The connection
// closes then.
func (st *stream) serve() {
	log := st.log
	defer func() {
		if v := recover(); v != nil {
			log.Error("panic in an event stream", "panic", v, "stack", string(debug.Stack()))
		}
	}()
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		if st.c.raw != nil && conn.AwaitClose(st.c.raw) {
			st.c.drop()
		}
	}()
	err := st.run()
	if err == nil && st.wasTooSlow() {
		err = errTooSlow
	}
	if err != nil {
		log.Info("event stream dropped: its reader has gone or is too slow", "error", err)
	}
	_ = st.c.Conn.SetReadDeadline(pastDeadline)
	<-watched
}

func (st *stream) run() error {
	if ended, err := st.flush([]byte(wire.StreamHead), true); ended || err != nil {
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
		if ended, err := st.flush(nil, beat); ended || err != nil {
			return err
		}
	}
}

// flush writes head and the queue, with a comment line before it if beat is set, and the
// end if nothing follows.
func (st *stream) flush(head []byte, beat bool) (ended bool, err error) {
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

// errTooSlow: a reader left more events unread than may wait.
var errTooSlow = errors.New("too many events wait to be read")

func (st *stream) wasTooSlow() bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.tooSlow
}

// wasDropped reports whether the reader has left.
func (st *stream) wasDropped() bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.dropped
}
