package wire

import (
	"strconv"
	"time"

	"github.com/locksidecar/locksidecar/lease"
	"github.com/locksidecar/locksidecar/store"
)

// StreamHead begins a stream. The comment makes proxies and clients see the stream at once.
const StreamHead = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-store\r\n" +
	"Transfer-Encoding: chunked\r\n\r\n"

const (
	comment = ":\n\n"
	// LastChunk ends a chunked body.
	LastChunk = "0\r\n\r\n"
)

// Event is something that a stream tells.
type Event interface {
	// AppendTo appends it as it is written: its name, its data, and an empty line.
	AppendTo(b []byte) []byte
}

// AppendEvents appends one chunk with the events, nothing if there is none.
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

// openEvent and closeEvent stand around the data of an event.
func openEvent(b []byte, name string) []byte {
	b = append(b, "event: "...)
	b = append(b, name...)
	return append(b, "\ndata: "...)
}

func closeEvent(b []byte) []byte { return append(b, "\n\n"...) }

// SessionEvent tells a session's id.
type SessionEvent struct {
	Session interface {
		ID() string
		TTL() time.Duration
		ExpiresIn() time.Duration
	}
}

// AppendTo appends the event as a chunk of the stream.
func (e SessionEvent) AppendTo(b []byte) []byte {
	b = append(openEvent(b, "session"), `{"session":`...)
	b = AppendString(b, e.Session.ID())
	b = append(b, `,"ttl_ms":`...)
	b = appendMillis(b, e.Session.TTL())
	b = append(b, `,"expires_in_ms":`...)
	b = appendMillis(b, e.Session.ExpiresIn())
	return closeEvent(append(b, '}'))
}

// LostEvent tells that the session has lost a lock.
type LostEvent lease.Lost

// AppendTo appends the event as a chunk of the stream.
func (e LostEvent) AppendTo(b []byte) []byte {
	b = appendLock(openEvent(b, "lost"), e.Key, e.Token)
	b = append(b, `,"reason":`...)
	b = AppendString(b, string(e.Reason))
	return closeEvent(append(b, '}'))
}

// StopEvent tells that somebody asks the session to stop.
type StopEvent lease.Stop

// AppendTo appends the event as a chunk of the stream.
func (e StopEvent) AppendTo(b []byte) []byte {
	b = appendLock(openEvent(b, "stop"), e.Key, e.Token)
	b = append(b, `,"reason":`...)
	b = appendReason(b, e.Reason)
	return closeEvent(append(b, '}'))
}

// appendLock begins the data of an event that is about one grant.
func appendLock(b []byte, key string, token int64) []byte {
	b = append(b, `{"key":`...)
	b = AppendString(b, key)
	b = append(b, `,"token":`...)
	return strconv.AppendInt(b, token, 10)
}

// StateEvent is what a key was like when the watch took effect.
type StateEvent lease.View

// AppendTo appends the event as a chunk of the stream.
func (e StateEvent) AppendTo(b []byte) []byte {
	b = openEvent(b, "state")
	v := lease.View(e)
	b = AppendView(b, &v)
	return closeEvent(b)
}

// AppendEvent appends the problem as an event, for a stream that has begun.
func (p *Problem) AppendEvent(b []byte) []byte {
	return closeEvent(p.Append(openEvent(b, "problem")))
}

// KeyEvent is what happened to a key.
type KeyEvent lease.Event

// AppendTo appends the event as a chunk of the stream.
func (e KeyEvent) AppendTo(b []byte) []byte {
	switch e.Kind {
	case store.EventAcquired:
		b = e.begin(b, "acquired")
		b = e.appendMode(b)
		b = append(b, `,"holder":`...)
		b = appendHolder(b, &e.Lock)
	case store.EventReleased:
		b = e.begin(b, "released")
		b = append(b, `,"outcome":`...)
		b = appendStringOrNull(b, OutcomeName(e.Outcome))
		b = append(b, `,"result":`...)
		b = appendJSON(b, e.Result)
	case store.EventExpired:
		b = e.begin(b, "expired")
	case store.EventStopping:
		b = e.begin(b, "stopping")
		b = append(b, ',')
		b = appendStop(b, e.Stopping)
	default:
		return b
	}
	return closeEvent(append(b, '}'))
}

func (e KeyEvent) begin(b []byte, name string) []byte {
	b = openEvent(b, name)
	return appendLock(b, e.Key, e.Token)
}

// appendMode appends how the lock was acquired, if that is known.
func (e KeyEvent) appendMode(b []byte) []byte {
	switch {
	case !e.Lock.Held:
		return append(b, `,"mode":null,"limit":null,"slot":null`...)
	case !e.Lock.Shared:
		return append(b, `,"mode":"exclusive","limit":null,"slot":null`...)
	}
	b = appendShared(b, e.Lock.Limit)
	slot := 0
	if len(e.Lock.Holders) > 0 {
		slot = e.Lock.Holders[0].Slot
	}
	return appendSlot(b, e.Lock.Limit, slot)
}
