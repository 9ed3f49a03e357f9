package wire

import (
	"bytes"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/locksidecar/locksidecar/store"
)

// object is a JSON object that is being written. Its methods append members, in the order of the calls, without
// allocating, because every call needs an answer. A member without a value is null, and never omitted.
type object []byte

func open(b []byte) object { return append(b, '{') }

func (o object) end() []byte { return append(o, '}') }

// name begins a member. The name needs no escapes.
func (o object) name(name string) object {
	o = append(append(comma(o), '"'), name...)
	return append(o, `":`...)
}

// comma adds a comma if there is a previous member or element.
func comma(b []byte) []byte {
	if last := b[len(b)-1]; last == '{' || last == '[' {
		return b
	}
	return append(b, ',')
}

func (o object) null(name string) object { return append(o.name(name), "null"...) }

func (o object) text(name, value string) object { return appendString(o.name(name), value) }

// textIf appends null for an empty text.
func (o object) textIf(name, value string) object {
	if value == "" {
		return o.null(name)
	}
	return o.text(name, value)
}

func (o object) number(name string, n int64) object {
	return strconv.AppendInt(o.name(name), n, 10)
}

func (o object) boolean(name string, value bool) object {
	return strconv.AppendBool(o.name(name), value)
}

// millis appends a time in milliseconds, at least 0 and rounded down, so that clients never trust a lock too long.
func (o object) millis(name string, d time.Duration) object {
	return o.number(name, max(0, d.Milliseconds()))
}

// time appends a time in UTC (RFC 3339), in microseconds.
func (o object) time(name string, t time.Time) object {
	o = append(o.name(name), '"')
	o = t.UTC().Truncate(time.Microsecond).AppendFormat(o, time.RFC3339Nano)
	return append(o, '"')
}

// json appends JSON, or null for none. Line ends become spaces, because they would end the line of an
// event. This server writes none, but a row may be edited or a notification sent by hand.
func (o object) json(name string, value []byte) object {
	if len(value) == 0 {
		return o.null(name)
	}
	o = o.name(name)
	from := len(o)
	o = append(o, value...)
	for _, end := range []byte("\r\n") { // in JSON they occur only between tokens
		for i := bytes.IndexByte(o[from:], end); i >= 0; i = bytes.IndexByte(o[from:], end) {
			o[from+i] = ' '
		}
	}
	return o
}

// holder appends the holder of a lock, or null if unknown.
func (o object) holder(l *store.Lock) object {
	if !l.Held {
		return o.null("holder")
	}
	return open(o.name("holder")).holderMembers(&l.Holder).end()
}

func (o object) holderMembers(h *store.Holder) object {
	return o.text("instance", h.Instance).
		text("pod", h.Pod).
		textIf("session", h.Session).
		textIf("owner", h.Owner).
		time("acquired_at", h.AcquiredAt).
		millis("held_ms", h.HeldFor).
		millis("expires_in_ms", h.ExpiresIn).
		json("data", h.Data).
		textIf("traceparent", h.Traceparent)
}

// reason appends the reason of a request to stop. An empty reason differs from null, which means none.
func (o object) reason(reason *string) object {
	if reason == nil {
		return o.null("reason")
	}
	return o.text("reason", *reason)
}

// stop appends the members of a request to stop.
func (o object) stop(s *store.Stopping) object {
	return o.reason(s.Reason).time("requested_at", s.At)
}

func (o object) stopping(s *store.Stopping) object {
	if s == nil {
		return o.null("stopping")
	}
	return open(o.name("stopping")).stop(s).end()
}

// appendString appends s as a JSON string. Bytes that are not UTF-8 become U+FFFD.
func appendString(b []byte, s string) []byte {
	b = append(b, '"')
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= 0x20 && c != '"' && c != '\\' && c < utf8.RuneSelf {
			i++
			continue
		}
		if c >= utf8.RuneSelf {
			r, size := utf8.DecodeRuneInString(s[i:])
			if r == utf8.RuneError && size == 1 {
				b = append(b, s[start:i]...)
				b = append(b, "\uFFFD"...)
				start = i + 1
			}
			i += size
			continue
		}
		b = append(b, s[start:i]...)
		b = appendEscape(b, c)
		i++
		start = i
	}
	b = append(b, s[start:]...)
	return append(b, '"')
}

func appendEscape(b []byte, c byte) []byte {
	const hex = "0123456789abcdef"
	if c == '"' || c == '\\' {
		return append(b, '\\', c)
	}
	return append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
}
