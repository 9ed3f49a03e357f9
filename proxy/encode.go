package proxy

import (
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/locksidecar/locksidecar/lease"
	"github.com/locksidecar/locksidecar/store"
)

// Answers are appended to a buffer by hand: they are few, small and on the
// path of every call.

// features is what this version can do, for GET /v1. The names are stable.
var features = []string{"wait", "bind_ttl", "data", "request_id", "sessions", "list"}

func appendAbout(b []byte, version string) []byte {
	b = append(b, `{"version":`...)
	b = appendString(b, version)
	b = append(b, `,"api":"v1","features":[`...)
	for i, f := range features {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(b, f)
	}
	return append(b, "]}"...)
}

// appendGrant appends the members of a granted acquire, without the last brace.
func appendGrant(b []byte, g *lease.Grant) []byte {
	b = append(b, `{"granted":true,"key":`...)
	b = appendString(b, g.Key)
	b = append(b, `,"token":`...)
	b = strconv.AppendInt(b, g.Token, 10)
	b = append(b, `,"session":`...)
	b = appendStringOrNull(b, g.Session)
	b = append(b, `,"bind":"`...)
	b = append(b, g.Bind.String()...)
	b = append(b, `","reentry":1,"expires_in_ms":`...)
	b = appendMillis(b, g.ExpiresIn)
	b = append(b, `,"waited_ms":`...)
	b = appendMillis(b, g.Waited)
	b = append(b, `,"acquired_at":`...)
	return appendTime(b, g.AcquiredAt)
}

func appendReleased(b []byte, r *lease.Released) []byte {
	b = append(b, `{"key":`...)
	b = appendString(b, r.Key)
	b = append(b, `,"released":true,"reentry":0,"held_ms":`...)
	b = appendMillis(b, r.HeldFor)
	return append(b, '}')
}

func appendView(b []byte, v *lease.View) []byte {
	b = append(b, `{"key":`...)
	b = appendString(b, v.Key)
	b = append(b, `,"type":`...)
	b = appendString(b, typeOf(v.Key))
	if v.Held {
		b = append(b, `,"state":"held","mine":`...)
	} else {
		b = append(b, `,"state":"free","mine":`...)
	}
	b = strconv.AppendBool(b, v.Mine)
	if v.Mine {
		b = append(b, `,"token":`...)
		b = strconv.AppendInt(b, v.Token, 10)
	}
	if v.Held {
		b = append(b, `,"holder":`...)
		b = appendHolder(b, &v.Lock)
	}
	b = append(b, `,"queue_length":`...)
	b = strconv.AppendInt(b, int64(v.QueueLength), 10)
	return append(b, `,"stopping":null}`...)
}

// typeOf is the part of a key before the first colon.
func typeOf(key string) string {
	before, _, found := strings.Cut(key, ":")
	if !found {
		return ""
	}
	return before
}

// appendPage appends a page, or of a large one the first part: clients go on at
// the cursor in either case.
func appendPage(b []byte, page *lease.Page) []byte {
	next := page.Next
	b = append(b, `{"locks":[`...)
	for i := range page.Locks {
		if len(b) >= maxPage {
			next = page.Locks[i-1].Key
			break
		}
		if i > 0 {
			b = append(b, ',')
		}
		b = appendView(b, &page.Locks[i])
	}
	b = append(b, ']')
	if next != "" {
		b = append(b, `,"next_cursor":"`...)
		b = append(b, encodeCursor(next)...)
		b = append(b, '"')
	}
	return append(b, '}')
}

// appendHolder appends who holds a lock, null if that is not known.
func appendHolder(b []byte, l *store.Lock) []byte {
	if !l.Held {
		return append(b, "null"...)
	}
	h := &l.Holder
	b = append(b, `{"instance":`...)
	b = appendString(b, h.Instance)
	b = append(b, `,"pod":`...)
	b = appendString(b, h.Pod)
	b = append(b, `,"session":`...)
	b = appendStringOrNull(b, h.Session)
	b = append(b, `,"owner":`...)
	b = appendStringOrNull(b, h.Owner)
	b = append(b, `,"acquired_at":`...)
	b = appendTime(b, h.AcquiredAt)
	b = append(b, `,"held_ms":`...)
	b = appendMillis(b, h.HeldFor)
	b = append(b, `,"expires_in_ms":`...)
	b = appendMillis(b, h.ExpiresIn)
	b = append(b, `,"data":`...)
	if len(h.Data) > 0 {
		b = append(b, h.Data...)
	} else {
		b = append(b, "null"...)
	}
	b = append(b, `,"traceparent":`...)
	b = appendStringOrNull(b, h.Traceparent)
	return append(b, '}')
}

func appendLost(b []byte, l *lease.Lost) []byte {
	b = append(b, `{"key":`...)
	b = appendString(b, l.Key)
	b = append(b, `,"token":`...)
	b = strconv.AppendInt(b, l.Token, 10)
	b = append(b, `,"reason":`...)
	b = appendString(b, string(l.Reason))
	return append(b, '}')
}

// appendMillis appends whole milliseconds, rounded down and never below zero: a
// lock that expires in 0.9 ms must not be said to have one left.
func appendMillis(b []byte, d time.Duration) []byte {
	return strconv.AppendInt(b, max(0, d.Milliseconds()), 10)
}

// appendTime appends a time in UTC (RFC 3339), to the microsecond.
func appendTime(b []byte, t time.Time) []byte {
	b = append(b, '"')
	b = t.UTC().Truncate(time.Microsecond).AppendFormat(b, time.RFC3339Nano)
	return append(b, '"')
}

func appendStringOrNull(b []byte, s string) []byte {
	if s == "" {
		return append(b, "null"...)
	}
	return appendString(b, s)
}

// appendString appends s as a JSON string. What is not UTF-8 becomes U+FFFD.
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
