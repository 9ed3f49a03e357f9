package cas

import (
	"time"

	"github.com/locksidecar/locksidecar/store/key"
)

// usualRecord is more bytes than most records have.
const usualRecord = 256

// encoder writes a record as CBOR, byte by byte as the library would write it by the tags of [key.Record]. It needs no reflection:
// a record is written with each swap. The rare parts are left to the library.
type encoder struct {
	to     []byte
	at     int  // of the head of the map that is being written
	fields byte // of that map
}

// The major types of CBOR.
const (
	positive = iota << 5
	negative
	bytesOf
	textOf
	arrayOf
	mapOf
	isTrue = 0xf5
	isNull = 0xf6
)

// head writes a type and a number.
func (e *encoder) head(major byte, n uint64) {
	switch {
	case n < 24:
		e.to = append(e.to, major|byte(n))
	case n < 1<<8:
		e.to = append(e.to, major|24, byte(n))
	case n < 1<<16:
		e.to = append(e.to, major|25, byte(n>>8), byte(n))
	case n < 1<<32:
		e.to = append(e.to, major|26, byte(n>>24), byte(n>>16), byte(n>>8), byte(n))
	default:
		e.to = append(e.to, major|27, byte(n>>56), byte(n>>48), byte(n>>40), byte(n>>32), byte(n>>24), byte(n>>16), byte(n>>8), byte(n))
	}
}

// struc writes a map of fewer than 24 fields.
func (e *encoder) struc(fields func()) {
	at, n := e.at, e.fields
	e.at, e.fields = len(e.to), 0
	e.to = append(e.to, mapOf)
	fields()
	e.to[e.at] |= e.fields
	e.at, e.fields = at, n
}

// field begins a field.
func (e *encoder) field(name uint64) {
	e.fields++
	e.head(positive, name)
}

// list begins a field of several elements. Without any, it has none.
func (e *encoder) list(name uint64, n int) {
	if n > 0 {
		e.field(name)
		e.head(arrayOf, uint64(n))
	}
}

func (e *encoder) number(name uint64, n int64) {
	switch {
	case n > 0:
		e.field(name)
		e.head(positive, uint64(n))
	case n < 0:
		e.field(name)
		e.head(negative, uint64(^n))
	}
}

func (e *encoder) yes(name uint64, is bool) {
	if is {
		e.field(name)
		e.to = append(e.to, isTrue)
	}
}

func (e *encoder) text(name uint64, s string) {
	if s != "" {
		e.field(name)
		e.head(textOf, uint64(len(s)))
		e.to = append(e.to, s...)
	}
}

func (e *encoder) data(name uint64, b []byte) {
	if len(b) > 0 {
		e.field(name)
		e.bytes(b)
	}
}

func (e *encoder) bytes(b []byte) {
	if b == nil {
		e.to = append(e.to, isNull)
		return
	}
	e.head(bytesOf, uint64(len(b)))
	e.to = append(e.to, b...)
}

// id writes an id, also a zero one.
func (e *encoder) id(name uint64, id [16]byte) {
	e.field(name)
	e.bytes(id[:])
}

// moment writes a time, also a zero one.
func (e *encoder) moment(name uint64, t time.Time) {
	e.field(name)
	if t.IsZero() {
		e.to = append(e.to, isNull)
		return
	}
	const longest = uint64(len(time.RFC3339Nano))
	text := t.UTC().AppendFormat(make([]byte, 0, longest), time.RFC3339Nano)
	e.head(textOf, uint64(len(text)))
	e.to = append(e.to, text...)
}

// other leaves a field to the library.
func (e *encoder) other(name uint64, v any) {
	e.field(name)
	e.to = append(e.to, marshal(v)...)
}

func (e *encoder) record(rec *key.Record) {
	e.struc(func() {
		e.list(1, len(rec.Instances))
		for i := range rec.Instances {
			e.struc(func() { e.text(1, rec.Instances[i].Name); e.text(2, rec.Instances[i].Pod) })
		}
		e.list(2, len(rec.Leases))
		for i := range rec.Leases {
			e.lease(&rec.Leases[i])
		}
		e.field(3)
		e.holder(&rec.Holder)
		e.list(4, len(rec.Shares))
		for i := range rec.Shares {
			e.holder(&rec.Shares[i])
		}
		e.number(5, int64(rec.Limit))
		e.number(6, rec.Freed)
		e.number(7, rec.Last)
		e.waiters(8, rec.Waiters)
		e.waiters(9, rec.Skipped)
		e.list(10, len(rec.Watchers))
		for i := range rec.Watchers {
			e.struc(func() { e.asker(&rec.Watchers[i]) })
		}
		if len(rec.Signals) > 0 {
			e.other(11, rec.Signals)
		}
		e.list(12, len(rec.Results))
		for _, result := range rec.Results {
			e.bytes(result)
		}
		e.text(13, rec.Writer)
	})
}

func (e *encoder) lease(l *key.RecordLease) {
	e.struc(func() {
		e.id(1, l.ID)
		e.number(2, int64(l.By))
		e.number(3, int64(l.TTL))
		e.yes(4, l.Dead)
	})
}

func (e *encoder) asker(a *key.RecordAsker) {
	e.number(1, int64(a.By))
	e.number(2, int64(a.Lease))
}

func (e *encoder) asked(a *key.Asked) {
	e.id(10, a.Attempt)
	e.number(11, int64(a.TTL))
	e.number(12, int64(a.MinHold))
	e.yes(13, a.Skip)
	e.yes(14, a.Shared)
	e.number(15, int64(a.Limit))
	e.text(16, a.Session)
	e.text(17, a.Owner)
	e.text(18, a.Traceparent)
	e.data(19, a.Data)
}

func (e *encoder) holder(h *key.RecordHolder) {
	e.struc(func() {
		e.asker(&h.RecordAsker)
		e.asked(&h.Asked)
		e.number(20, h.Token)
		e.moment(21, h.Acquired)
		e.text(22, h.HandedBy)
		e.yes(23, h.Released)
		if h.Stopping != nil {
			e.other(24, h.Stopping)
		}
		e.yes(25, h.Repeated)
		e.number(26, int64(h.Slot))
		e.yes(27, h.Keepable)
		e.number(30, int64(h.Hold))
	})
}

func (e *encoder) waiters(name uint64, of []key.RecordWaiter) {
	e.list(name, len(of))
	for i := range of {
		w := &of[i]
		e.struc(func() {
			e.asker(&w.RecordAsker)
			e.asked(&w.Asked)
			e.number(30, w.Order)
			e.number(31, w.Since)
			e.number(32, int64(w.Result))
		})
	}
}
