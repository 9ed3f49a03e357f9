package key

import (
	"bytes"
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/store"
)

// Record is a row in a form that can be encoded. Equal rows have equal records. Instances, leases and results are in
// tables. A number n of an instance, lease or result means the n-th of its table; zero means none.
type Record struct {
	Instances []Instance     `cbor:"1,keyasint,omitempty"`
	Leases    []RecordLease  `cbor:"2,keyasint,omitempty"`
	Holder    RecordHolder   `cbor:"3,keyasint,omitempty"`
	Shares    []RecordHolder `cbor:"4,keyasint,omitempty"`
	Limit     int            `cbor:"5,keyasint,omitempty"`
	// Freed is when the key became free, in microseconds since 1970; zero means held or unknown.
	Freed int64 `cbor:"6,keyasint,omitempty"`
	// Last is the order of the last waiter that came.
	Last     int64          `cbor:"7,keyasint,omitempty"`
	Waiters  []RecordWaiter `cbor:"8,keyasint,omitempty"`
	Skipped  []RecordWaiter `cbor:"9,keyasint,omitempty"`
	Watchers []RecordAsker  `cbor:"10,keyasint,omitempty"`
	Signals  []RecordSignal `cbor:"11,keyasint,omitempty"`
	// Results are those of skipped waiters. Many waiters may have one result.
	Results [][]byte `cbor:"12,keyasint,omitempty"`
	// Writer is the instance that wrote the record, if nothing else in it names this instance. The engine sets it, a row does not have it.
	Writer string `cbor:"13,keyasint,omitempty"`
}

// RecordLease is a lease that a record names.
type RecordLease struct {
	ID store.LeaseID `cbor:"1,keyasint,omitempty"`
	// By is the instance that renews the lease, or zero.
	By  int           `cbor:"2,keyasint,omitempty"`
	TTL time.Duration `cbor:"3,keyasint,omitempty"`
	// Dead: the lease was declared dead before the row was written, so the row needs no Visit.
	Dead bool `cbor:"4,keyasint,omitempty"`
}

// RecordAsker names an instance and its lease.
type RecordAsker struct {
	By int `cbor:"1,keyasint,omitempty"`
	// Lease may be Ended.
	Lease int `cbor:"2,keyasint,omitempty"`
}

// Ended is the number of a lease that ended with its grant, while the record still shows the grant.
const Ended = -1

// RecordHolder is a present or past holder.
type RecordHolder struct {
	RecordAsker
	Asked
	Grant
	// Hold is the number of the lease that lasts as long as the MinHold.
	Hold int `cbor:"30,keyasint,omitempty"`
}

// RecordWaiter is a waiter. Result is the number of a skipped one's result.
type RecordWaiter struct {
	RecordAsker
	Asked
	Order int64 `cbor:"30,keyasint,omitempty"`
	// Since is in microseconds since 1970.
	Since  int64 `cbor:"31,keyasint,omitempty"`
	Result int   `cbor:"32,keyasint,omitempty"`
}

// RecordSignal is a signal that the holder under this lease has not acknowledged.
type RecordSignal struct {
	Lease  int          `cbor:"1,keyasint,omitempty"`
	Signal store.Signal `cbor:"2,keyasint,omitempty"`
}

// Record returns the row in a form that can be encoded. It shares Data with the row.
func (r *Row) Record() *Record {
	rec := &Record{Limit: r.limit, Freed: r.freed, Last: r.queue.last}
	to := recorder{Record: rec}
	rec.Holder = to.holder(&r.holder)
	for _, h := range r.shares {
		rec.Shares = append(rec.Shares, to.holder(h))
	}
	for _, w := range r.queue.line {
		rec.Waiters = append(rec.Waiters, to.waiter(w, 0))
	}
	for _, k := range r.skipsInOrder() {
		rec.Skipped = append(rec.Skipped, to.waiter(k.waiter, rec.result(k.result)))
	}
	for _, name := range r.watchersInOrder() {
		w := r.watchers[name]
		rec.Watchers = append(rec.Watchers, to.asker(w.by, w.lease))
	}
	for i, l := range to.leases {
		for _, g := range l.Signals() {
			if g.Key == r.Key {
				rec.Signals = append(rec.Signals, RecordSignal{i + 1, g})
			}
		}
	}
	return rec
}

// recorder numbers the instances and leases that a record names.
type recorder struct {
	*Record
	leases []*Lease // in the order of Leases
}

func (to *recorder) instance(i *Instance) int {
	if i == nil {
		return 0
	}
	at := slices.IndexFunc(to.Instances, func(known Instance) bool { return known.Name == i.Name })
	if at < 0 {
		at = len(to.Instances)
		to.Instances = append(to.Instances, Instance{Name: i.Name, Pod: i.Pod})
	}
	return at + 1
}

func (to *recorder) lease(l *Lease) int {
	switch l {
	case nil:
		return 0
	case endedLease:
		return Ended
	}
	at := slices.IndexFunc(to.leases, func(known *Lease) bool { return known.id == l.id })
	if at < 0 {
		at = len(to.leases)
		to.leases = append(to.leases, l)
		to.Leases = append(to.Leases, RecordLease{ID: l.id, By: to.instance(l.by), TTL: l.ttl, Dead: l.Dead()})
	}
	return at + 1
}

func (to *recorder) asker(by *Instance, l *Lease) RecordAsker {
	return RecordAsker{By: to.instance(by), Lease: to.lease(l)}
}

func (to *recorder) holder(h *holder) RecordHolder {
	rec := RecordHolder{RecordAsker: to.asker(h.by, h.lease), Asked: h.Asked, Grant: h.Grant, Hold: to.lease(h.hold)}
	rec.Acquired = stored(h.Acquired)
	return rec
}

func (to *recorder) waiter(w *waiter, result int) RecordWaiter {
	return RecordWaiter{to.asker(w.by, w.lease), w.Asked, w.order, w.since, result}
}

// result returns the number of a result.
func (rec *Record) result(result []byte) int {
	if len(result) == 0 {
		return 0
	}
	at := slices.IndexFunc(rec.Results, func(known []byte) bool { return bytes.Equal(known, result) })
	if at < 0 {
		at = len(rec.Results)
		rec.Results = append(rec.Results, result)
	}
	return at + 1
}

func (r *Row) skipsInOrder() []*skip {
	var skips []*skip
	for _, k := range r.skipped {
		skips = append(skips, k)
	}
	slices.SortFunc(skips, func(a, b *skip) int { return cmp.Compare(a.order, b.order) })
	return skips
}

func (r *Row) watchersInOrder() []string {
	if len(r.watchers) == 0 {
		return nil // sorting none allocates memory, too
	}
	return slices.Sorted(maps.Keys(r.watchers))
}

// stored drops what an encoded time does not keep.
func stored(t time.Time) time.Time { return t.Round(0).UTC() }

// Row returns the row of a record. leases are the record's Leases, in their order, with their present states.
// The row shares Data with the record.
func (rec *Record) Row(key string, leases []*Lease) *Row {
	r := &Row{Key: key, limit: rec.Limit, freed: rec.Freed}
	lease := func(n int) *Lease {
		switch n {
		case 0:
			return nil
		case Ended:
			return endedLease
		default:
			return leases[n-1]
		}
	}
	instance := func(n int) *Instance {
		if n == 0 {
			return nil
		}
		return &rec.Instances[n-1]
	}
	holder := func(h *RecordHolder) holder {
		return holder{asker{h.Asked, instance(h.By), lease(h.Lease)}, h.Grant, lease(h.Hold)}
	}
	waiter := func(w *RecordWaiter) *waiter {
		return &waiter{asker{w.Asked, instance(w.By), lease(w.Lease)}, w.Order, w.Since}
	}
	r.holder = holder(&rec.Holder)
	for i := range rec.Shares {
		h := holder(&rec.Shares[i])
		r.shares = append(r.shares, &h)
	}
	for i := range rec.Waiters {
		r.queue.add(waiter(&rec.Waiters[i]))
	}
	r.queue.last = rec.Last
	for i := range rec.Skipped {
		k := &skip{waiter: waiter(&rec.Skipped[i])}
		if n := rec.Skipped[i].Result; n > 0 {
			k.result = rec.Results[n-1]
		}
		r.addSkip(k)
	}
	for _, w := range rec.Watchers {
		if r.watchers == nil {
			r.watchers = map[string]watcher{}
		}
		r.watchers[instance(w.By).Name] = watcher{instance(w.By), lease(w.Lease)}
	}
	for _, g := range rec.Signals {
		if l := lease(g.Lease); !l.Dead() {
			l.signals = append(l.signals, g.Signal)
		}
	}
	return r
}
