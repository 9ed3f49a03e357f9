package wire

import (
	"cmp"
	"encoding/base64"
	"strconv"
	"strings"

	"github.com/locksidecar/locksidecar/lease"
	"github.com/locksidecar/locksidecar/store"
)

// maxShares is the highest limit of a shared lock.
const maxShares = 1000

const (
	modeExclusive = "exclusive"
	modeShared    = "shared"
)

// mode reads the mode and the limit of an acquire.
func (in *input) mode(r *lease.Request) {
	r.Shared = in.word("mode", modeExclusive, modeShared) == 2
	r.Limit = int(in.integer("limit", 1, maxShares))
	if r.Shared {
		in.without(`is not for "mode":"shared"`, "reentrant", "on_success")
	} else {
		in.without(`is only for "mode":"shared"`, "limit")
	}
}

// share reads the mode of a PATCH. There is no upgrade: two holders that wait for each other to release would
// wait for ever.
func (in *input) share() bool {
	if a := in.find("mode"); a != nil && in.text("mode") == modeExclusive {
		in.failf("%s is \"exclusive\"; it must be \"shared\": a shared lock cannot become exclusive, release it and acquire", a.String())
	}
	return in.word("mode", modeShared) == 1
}

// appendShared appends the mode and the limit of a shared lock.
func appendShared(b []byte, limit int) []byte {
	b = append(b, `,"mode":"shared","limit":`...)
	return appendPositive(b, limit)
}

func appendSlot(b []byte, limit, slot int) []byte {
	b = append(b, `,"slot":`...)
	if limit == 0 {
		return append(b, "null"...)
	}
	return strconv.AppendInt(b, int64(slot), 10)
}

// appendPositive appends a number above zero, or null for zero.
func appendPositive(b []byte, n int) []byte {
	if n == 0 {
		return append(b, "null"...)
	}
	return strconv.AppendInt(b, int64(n), 10)
}

// appendHolders appends how a key is held, by how many, and by whom: of shared holders by the first.
func appendHolders(b []byte, l *store.Lock) []byte {
	count := 0
	switch {
	case l.Shared:
		b, count = appendShared(b, l.Limit), l.HoldersCount
	case l.Held:
		b, count = append(b, `,"mode":"exclusive","limit":null`...), 1
	default:
		b = append(b, `,"mode":null,"limit":null`...)
	}
	b = append(b, `,"holders_count":`...)
	b = strconv.AppendInt(b, int64(count), 10)
	b = append(b, `,"holder":`...)
	return appendHolder(b, l)
}

// appendShare appends one of the holders of a shared lock.
func appendShare(b []byte, s *store.Share, limit int) []byte {
	b = append(b, `{"token":`...)
	b = strconv.AppendInt(b, s.Token, 10)
	b = appendSlot(b, limit, s.Slot)
	b = append(b, ',')
	b = appendHolderMembers(b, &s.Holder)
	b = append(b, `,"stopping":`...)
	return append(appendStopping(b, s.Stopping), '}')
}

// ParseWaiters reads a list of the calls that wait for a key, or with an empty key for all.
func ParseWaiters(query, body []byte, key string) (lease.WaitersRequest, *Problem) {
	known := []string{"limit", "cursor", "prefix"}
	if key != "" {
		known = known[:2]
	}
	in := readInput(query, known, body, nil)
	r := lease.WaitersRequest{Key: key, Limit: int(cmp.Or(in.integer("limit", 1, maxLimit), defaultLimit))}
	r.Prefix, _ = in.prefix()
	if in.has("cursor") {
		r.After = in.place()
	}
	return r, in.problem
}

// AppendWaiters appends a page of waiting calls.
func AppendWaiters(b []byte, page *lease.WaitersPage) []byte {
	b = append(b, `{"waiters":[`...)
	for i := range page.Waiting {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendWaiting(b, &page.Waiting[i])
	}
	b = append(b, `],"next_cursor":`...)
	return append(appendStringOrNull(b, encodePlace(page.Next)), '}')
}

func appendWaiting(b []byte, w *store.Waiting) []byte {
	b = append(b, `{"key":`...)
	b = AppendString(b, w.Key)
	b = append(b, `,"position":`...)
	b = strconv.AppendInt(b, int64(w.Position), 10)
	b = append(b, `,"pod":`...)
	b = AppendString(b, w.Pod)
	b = append(b, `,"session":`...)
	b = appendStringOrNull(b, w.Session)
	b = append(b, `,"owner":`...)
	b = appendStringOrNull(b, w.Owner)
	if w.Shared {
		b = appendShared(b, w.Limit)
	} else {
		b = append(b, `,"mode":"exclusive","limit":null`...)
	}
	b = append(b, `,"waiting_ms":`...)
	b = appendMillis(b, w.WaitingFor)
	b = append(b, `,"traceparent":`...)
	return append(appendStringOrNull(b, w.Traceparent), '}')
}

// A cursor of waiters is the place of the last one of the page before it: its order, a colon, and its key.
func encodePlace(p store.QueuePlace) string {
	if p == (store.QueuePlace{}) {
		return ""
	}
	return base64.RawURLEncoding.EncodeToString(append(append(strconv.AppendInt(nil, p.Order, 10), ':'), p.Key...))
}

func (in *input) place() store.QueuePlace {
	text, err := base64.RawURLEncoding.Strict().DecodeString(in.text("cursor"))
	order, key, _ := strings.Cut(string(text), ":")
	n, ok := parseInteger([]byte(order))
	if err != nil || !ok || checkKey("cursor", key) != nil {
		in.failf("query parameter cursor is not one that this server gave out")
		return store.QueuePlace{}
	}
	return store.QueuePlace{Key: key, Order: n}
}
