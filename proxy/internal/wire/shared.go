package wire

import (
	"cmp"
	"encoding/base64"
	"strconv"
	"strings"

	"github.com/locksidecar/locksidecar/lease"
	"github.com/locksidecar/locksidecar/store"
)

// maxShares limits the limit of a shared lock.
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
		in.without(`is not for "mode":"shared": leave it out, or acquire the lock exclusively`, "reentrant", "on_success")
	} else {
		in.without(`is only for "mode":"shared"`, "limit")
	}
}

// share reads the mode of a PATCH. There is no upgrade, because two holders that wait for each other to
// release would wait for ever.
func (in *input) share() bool {
	if a := in.find("mode"); a != nil && in.text("mode") == modeExclusive {
		in.failf("%s is \"exclusive\"; it must be \"shared\": a shared lock cannot become exclusive, release it and acquire", a.String())
	}
	return in.word("mode", modeShared) == 1
}

// mode appends the mode and the limit of a lock, or of its waiters. A free key has no mode.
func (o object) mode(held, shared bool, limit int) object {
	switch {
	case !held:
		return o.null("mode").null("limit")
	case shared:
		return o.text("mode", modeShared).positive("limit", int64(limit))
	default:
		return o.text("mode", modeExclusive).null("limit")
	}
}

// slot appends null without a limit.
func (o object) slot(limit, slot int) object {
	if limit == 0 {
		return o.null("slot")
	}
	return o.number("slot", int64(slot))
}

// positive appends null for zero.
func (o object) positive(name string, n int64) object {
	if n == 0 {
		return o.null(name)
	}
	return o.number(name, n)
}

// holders appends the mode of a key, the number of its holders, the holder, of shared ones the first, and whether its sidecar may keep the key.
func (o object) holders(l *store.Lock) object {
	count := 0
	if l.Shared {
		count = l.HoldersCount
	} else if l.Held {
		count = 1
	}
	return o.mode(l.Shared || l.Held, l.Shared, l.Limit).number("holders_count", int64(count)).holder(l).boolean("kept", l.Held && l.Kept)
}

// share appends the members of one holder of a shared lock.
func (o object) share(s *store.Share, limit int) object {
	return o.positive("token", s.Token).slot(limit, s.Slot).holderMembers(&s.Holder).stopping(s.Stopping)
}

// grantMode appends the mode of an event's grant. Its holder, if known, is the only one in the lock.
func (o object) grantMode(l *store.Lock) object {
	slot := 0
	if len(l.Holders) > 0 {
		slot = l.Holders[0].Slot
	}
	limit := 0
	if l.Held && l.Shared {
		limit = l.Limit
	}
	return o.mode(l.Held, l.Shared, l.Limit).slot(limit, slot)
}

// ParseWaiters reads a list of the calls that wait for a key. An empty key selects all.
func ParseWaiters(query, body []byte, key, own string) (lease.WaitersRequest, *Problem) {
	known := []string{"namespace", "limit", "cursor", "prefix"}
	if key != "" {
		known = known[:3]
	}
	in := readInput(query, known, body, nil)
	r := lease.WaitersRequest{Namespace: in.namespace(own), Key: key, Limit: int(cmp.Or(in.integer("limit", 1, maxLimit), defaultLimit))}
	r.Prefix, _ = in.prefix()
	if in.has("cursor") {
		r.After = in.place()
	}
	return r, in.problem
}

// AppendWaiters appends a page of waiting calls.
func AppendWaiters(b []byte, page *lease.WaitersPage) []byte {
	o := append(open(b).name("waiters"), '[')
	for i := range page.Waiting {
		o = open(comma(o)).waiting(&page.Waiting[i]).end()
	}
	return append(o, ']').textIf("next_cursor", encodePlace(page.Next)).end()
}

func (o object) waiting(w *store.Waiting) object {
	return o.text("key", w.Key).
		number("position", int64(w.Position)).
		text("pod", w.Pod).
		textIf("session", w.Session).
		textIf("owner", w.Owner).
		mode(true, w.Shared, w.Limit).
		millis("waiting_ms", w.WaitingFor).
		textIf("traceparent", w.Traceparent)
}

// A cursor of waiters identifies the last waiter of the previous page: its order, a colon, and its key.
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
