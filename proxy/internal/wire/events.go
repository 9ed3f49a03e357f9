package wire

import (
	"strconv"
	"time"

	"github.com/locksidecar/locksidecar/lease"
	"github.com/locksidecar/locksidecar/store"
)

// StreamHead begins a stream. The comment makes proxies and clients deliver the head at once.
const StreamHead = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-store\r\n" +
	"Transfer-Encoding: chunked\r\n\r\n"

const (
	comment = ":\n\n"
	// LastChunk ends a chunked body.
	LastChunk = "0\r\n\r\n"
)

// Event is an event of a stream.
type Event interface {
	// AppendTo appends the encoded event: its name, its data, and an empty line.
	AppendTo(b []byte) []byte
}

// AppendEvents appends one chunk with the events, or nothing without events.
func AppendEvents(b []byte, events []Event, beat bool) []byte {
	var text []byte
	if beat {
		text = append(text, comment...)
	}
	for _, e := range events {
		text = e.AppendTo(text)
	}
	if len(text) == 0 {
		return b
	}
	return appendChunk(b, text)
}

func appendChunk(b, text []byte) []byte {
	b = strconv.AppendInt(b, int64(len(text)), 16)
	b = append(b, "\r\n"...)
	b = append(b, text...)
	return append(b, "\r\n"...)
}

// openEvent and closeEvent enclose the data of an event.
func openEvent(b []byte, name string) []byte {
	b = append(b, "event: "...)
	b = append(b, name...)
	return append(b, "\ndata: "...)
}

func closeEvent(b []byte) []byte { return append(b, "\n\n"...) }

// SessionEvent contains a session's id.
type SessionEvent struct {
	Session interface {
		ID() string
		TTL() time.Duration
		ExpiresIn() time.Duration
	}
}

// AppendTo appends the event as a chunk of the stream.
func (e SessionEvent) AppendTo(b []byte) []byte {
	s := e.Session
	return closeEvent(open(openEvent(b, "session")).text("session", s.ID()).millis("ttl_ms", s.TTL()).millis("expires_in_ms", s.ExpiresIn()).end())
}

// LostEvent says that the session has lost a lock.
type LostEvent lease.Lost

// AppendTo appends the event as a chunk of the stream.
func (e LostEvent) AppendTo(b []byte) []byte {
	return closeEvent(open(openEvent(b, "lost")).text("key", e.Key).number("token", e.Token).text("reason", string(e.Reason)).end())
}

// StopEvent says that the session is asked to stop.
type StopEvent lease.Stop

// AppendTo appends the event as a chunk of the stream.
func (e StopEvent) AppendTo(b []byte) []byte {
	return closeEvent(open(openEvent(b, "stop")).text("key", e.Key).number("token", e.Token).reason(e.Reason).end())
}

// StateEvent is the state of a key when the watch began.
type StateEvent lease.View

// AppendTo appends the event as a chunk of the stream.
func (e StateEvent) AppendTo(b []byte) []byte {
	v := lease.View(e)
	return closeEvent(AppendView(openEvent(b, "state"), &v))
}

// AppendEvent appends the problem as an event, for a stream that has begun.
func (p *Problem) AppendEvent(b []byte) []byte {
	return closeEvent(p.Append(openEvent(b, "problem")))
}

// KeyEvent is what happened to a key.
type KeyEvent lease.Event

// AppendTo appends the event as a chunk of the stream.
func (e KeyEvent) AppendTo(b []byte) []byte {
	var o object
	switch e.Kind {
	case store.EventAcquired:
		o = e.begin(b, "acquired").grantMode(&e.Lock).holder(&e.Lock)
	case store.EventReleased:
		o = e.begin(b, "released").textIf("outcome", OutcomeName(e.Outcome)).json("result", e.Result)
	case store.EventExpired:
		o = e.begin(b, "expired")
	case store.EventStopping:
		o = e.begin(b, "stopping").stop(e.Stopping)
	default:
		return b
	}
	return closeEvent(o.end())
}

func (e KeyEvent) begin(b []byte, name string) object {
	return open(openEvent(b, name)).text("key", e.Key).number("token", e.Token)
}
