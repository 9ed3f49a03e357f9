package wire

import (
	"bytes"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/locksidecar/locksidecar/lease"
	"github.com/locksidecar/locksidecar/store"
)

// Answers are appended by hand: they are small and on the path of every call. A member without a value
// is null, and never left out.

// features is what this version can do, for GET /v1. The names are stable.
var features = []string{
	"wait", "bind_ttl", "data", "request_id", "sessions", "list",
	"reentrant", "outcome", "hold", "stop", "events", "several_keys", "stats",
	"release_by_id", "shared", "waiters",
}

// featureForce is only there where it is allowed.
const featureForce = "force"

// AppendAbout appends the answer to GET /v1, without the features that the store lacks.
func AppendAbout(b []byte, version string, force bool, lacking []string) []byte {
	b = append(b, `{"version":`...)
	b = AppendString(b, version)
	b = append(b, `,"api":"v1","features":[`...)
	for i, f := range features {
		if slices.Contains(lacking, f) {
			continue
		}
		if i > 0 {
			b = append(b, ',')
		}
		b = AppendString(b, f)
	}
	if force {
		b = append(b, ',')
		b = AppendString(b, featureForce)
	}
	return append(b, "]}"...)
}

// AppendGrant appends the members of a granted acquire, without the last brace.
func AppendGrant(b []byte, g *lease.Grant) []byte {
	b = append(b, `{"granted":true,"key":`...)
	b = AppendString(b, g.Key)
	b = append(b, `,"token":`...)
	b = strconv.AppendInt(b, g.Token, 10)
	b = append(b, `,"session":`...)
	b = appendStringOrNull(b, g.Session)
	b = append(b, `,"bind":"`...)
	b = append(b, g.Bind.String()...)
	b = append(b, `","reentry":`...)
	b = strconv.AppendInt(b, int64(g.Reentry), 10)
	b = append(b, `,"expires_in_ms":`...)
	b = appendMillis(b, g.ExpiresIn)
	b = append(b, `,"waited_ms":`...)
	b = appendMillis(b, g.Waited)
	b = append(b, `,"acquired_at":`...)
	b = appendTime(b, g.AcquiredAt)
	if !g.Shared {
		return append(b, `,"mode":"exclusive","limit":null,"slot":null`...)
	}
	b = appendShared(b, g.Limit)
	return appendSlot(b, g.Limit, g.Slot)
}

// AppendGrants appends the answer to an acquire of several keys.
func AppendGrants(b []byte, all []lease.Grant) []byte {
	b = append(b, `{"locks":[`...)
	for i := range all {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(AppendGrant(b, &all[i]), '}')
	}
	return append(b, "]}"...)
}

// AppendAmended appends the answer to a PATCH.
func AppendAmended(b []byte, g *lease.Grant) []byte {
	b = append(AppendGrant(b, g), `,"stopping":`...)
	return append(appendStopping(b, g.Stopping), '}')
}

// AppendSkipped appends the answer to an acquire that wants no lock any more.
func AppendSkipped(b []byte, s *lease.SkippedError) []byte {
	b = append(b, `{"granted":false,"key":`...)
	b = AppendString(b, s.Key)
	b = append(b, `,"outcome":"`...)
	b = append(b, OutcomeName(store.Success)...)
	b = append(b, `","result":`...)
	return append(appendJSON(b, s.Result), '}')
}

// OutcomeName is an outcome on the wire, empty for none.
func OutcomeName(o store.ReleaseOutcome) string {
	switch o {
	case store.Success:
		return "success"
	case store.Failure:
		return "failure"
	default:
		return ""
	}
}

// AppendReleased appends the answer to a release.
func AppendReleased(b []byte, r *lease.Released) []byte {
	b = append(b, `{"key":`...)
	b = AppendString(b, r.Key)
	b = append(b, `,"released":`...)
	b = strconv.AppendBool(b, r.Reentry == 0 && !r.Nothing)
	b = append(b, `,"reentry":`...)
	b = strconv.AppendInt(b, int64(r.Reentry), 10)
	b = append(b, `,"held_ms":`...)
	b = appendMillis(b, r.HeldFor)
	return append(b, '}')
}

// AppendView appends a lock as GET shows it.
func AppendView(b []byte, v *lease.View) []byte {
	b = append(b, `{"key":`...)
	b = AppendString(b, v.Key)
	b = append(b, `,"type":`...)
	b = AppendString(b, store.TypeOf(v.Key))
	if v.Held {
		b = append(b, `,"state":"held","mine":`...)
	} else {
		b = append(b, `,"state":"free","mine":`...)
	}
	b = strconv.AppendBool(b, v.Mine)
	b = append(b, `,"token":`...)
	if v.Mine {
		b = strconv.AppendInt(b, v.Token, 10)
	} else {
		b = append(b, "null"...)
	}
	b = appendHolders(b, &v.Lock)
	b = append(b, `,"holders":[`...)
	for i := range v.Holders {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendShare(b, &v.Holders[i], v.Limit)
	}
	b = append(b, `],"queue_length":`...)
	b = strconv.AppendInt(b, int64(v.QueueLength), 10)
	b = append(b, `,"cached":`...)
	b = strconv.AppendBool(b, v.Cached)
	b = append(b, `,"stopping":`...)
	return append(appendStopping(b, v.Stopping), '}')
}

func appendStopping(b []byte, s *store.Stopping) []byte {
	if s == nil {
		return append(b, "null"...)
	}
	return append(appendStop(append(b, '{'), s), '}')
}

func appendStop(b []byte, s *store.Stopping) []byte {
	b = append(b, `"reason":`...)
	b = appendReason(b, s.Reason)
	b = append(b, `,"requested_at":`...)
	return appendTime(b, s.At)
}

// appendReason appends the reason of a request to stop, which may be empty.
func appendReason(b []byte, reason *string) []byte {
	if reason == nil {
		return append(b, "null"...)
	}
	return AppendString(b, *reason)
}

// maxPage is about the most bytes in an answer: a page of a list ends there, whatever its limit.
const maxPage = 1 << 20

// AppendPage appends a page, or the first part of a large one: clients go on at the cursor.
func AppendPage(b []byte, page *lease.Page) []byte {
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
		b = AppendView(b, &page.Locks[i])
	}
	b = append(b, `],"next_cursor":`...)
	return append(appendStringOrNull(b, encodeCursor(next)), '}')
}

// appendHolder appends who holds a lock, null if that is not known.
func appendHolder(b []byte, l *store.Lock) []byte {
	if !l.Held {
		return append(b, "null"...)
	}
	return append(appendHolderMembers(append(b, '{'), &l.Holder), '}')
}

// appendHolderMembers appends the members of a holder, without braces.
func appendHolderMembers(b []byte, h *store.Holder) []byte {
	b = append(b, `"instance":`...)
	b = AppendString(b, h.Instance)
	b = append(b, `,"pod":`...)
	b = AppendString(b, h.Pod)
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
	b = appendJSON(b, h.Data)
	b = append(b, `,"traceparent":`...)
	return appendStringOrNull(b, h.Traceparent)
}

// appendMillis appends milliseconds, at least 0 and rounded down, so that nobody trusts a lock too long.
func appendMillis(b []byte, d time.Duration) []byte {
	return strconv.AppendInt(b, max(0, d.Milliseconds()), 10)
}

// appendTime appends a time in UTC (RFC 3339), to the microsecond.
func appendTime(b []byte, t time.Time) []byte {
	b = append(b, '"')
	b = t.UTC().Truncate(time.Microsecond).AppendFormat(b, time.RFC3339Nano)
	return append(b, '"')
}

// appendJSON appends JSON, null for nothing. Line ends become spaces: they would end the line of an
// event. This server writes none, but a row may be edited or a notification sent by hand.
func appendJSON(b, value []byte) []byte {
	if len(value) == 0 {
		return append(b, "null"...)
	}
	from := len(b)
	b = append(b, value...)
	for _, end := range []byte("\r\n") { // in JSON they only stand between tokens
		for i := bytes.IndexByte(b[from:], end); i >= 0; i = bytes.IndexByte(b[from:], end) {
			b[from+i] = ' '
		}
	}
	return b
}

func appendStringOrNull(b []byte, s string) []byte {
	if s == "" {
		return append(b, "null"...)
	}
	return AppendString(b, s)
}

// AppendString appends s as a JSON string. Bytes that are not UTF-8 become U+FFFD.
func AppendString(b []byte, s string) []byte {
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
