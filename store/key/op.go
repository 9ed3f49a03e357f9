package key

import (
	"time"

	"github.com/locksidecar/locksidecar/store"
)

// Moment is when an operation happens.
type Moment struct {
	// Wall decides nothing: it is shown.
	Wall time.Time
	// At is in nanoseconds on a monotonic clock; above zero.
	At int64
}

// Instance is a sidecar that uses keys. Two with the same name are the same.
type Instance struct {
	Name string `cbor:"1,keyasint,omitempty"`
	Pod  string `cbor:"2,keyasint,omitempty"`
	// Deliver is for the engine. The machine does not call it.
	Deliver func(*store.News) `cbor:"-" json:"-"`
}

func (i *Instance) is(other *Instance) bool {
	return i == other || i != nil && other != nil && i.Name == other.Name
}

// Engine is what the machine needs of the store that runs it.
type Engine interface {
	// Token returns the fencing token of a new grant. It is greater than each token before.
	Token() int64
	// Reserve keeps the tokens up to this one for the cohort of the grant that holds the key. It reports whether
	// no other grant of the key has one of them.
	Reserve(upTo int64) bool
	// Open makes the lease of a bind:ttl lock.
	Open(key string, ttl time.Duration, now Moment) *Lease
	// Hold makes a lease that lasts as long as a MinHold. Nobody extends it.
	Hold(key string, ttl time.Duration, now Moment) *Lease
	// Extend lets the lease of a bind:ttl lock last for ttl from now on, or returns another one that does. It
	// returns nil if the lease has expired.
	Extend(l *Lease, ttl time.Duration, now Moment) *Lease
	// Close forgets the lease of a bind:ttl lock that ended. The lease is dead.
	Close(l *Lease)
	// NextSignal returns a new id.
	NextSignal() store.SignalID
}

// Op is one call of a store. It may change several rows, one after the other.
type Op struct {
	Engine Engine
	// By is the instance that calls.
	By *Instance
	// Now is the moment of the present change. It never decreases from one change of a row to the next.
	Now Moment
	// Quiet above zero: the engine grants nothing for so long, because a failover may have forgotten grants. A key that
	// would be granted to waiters is kept for them by a hold. An ask is queued behind that hold, or answered Quiet.
	Quiet time.Duration

	// News is what the changes tell instances.
	News []News
	// Died are the leases that the changes declared dead. Each row that one of them holds, or waits for, needs
	// a Visit.
	Died []*Lease
}

// News is for one instance.
type News struct {
	To *Instance
	store.News
}

// tell sends a waiter's answer to its instance. Without an Outcome, it asks the instance to check the waiter.
func (o *Op) tell(r *Row, w *waiter, a store.Answer) {
	o.News = append(o.News, News{w.by, store.News{
		Attempt: store.Attempt{Key: r.Key, ID: w.Attempt}, Lease: w.lease.id, Answer: a,
	}})
}

// tellFirst notifies the first living waiter to check again, because the lock ends earlier.
func (o *Op) tellFirst(r *Row) {
	for _, w := range r.queue.line {
		if w.lease.Alive(o.Now) {
			o.tell(r, w, store.Answer{})
			return
		}
	}
}

func (o *Op) tellAll(r *Row) {
	for _, w := range r.queue.line {
		if w.lease.Alive(o.Now) {
			o.tell(r, w, store.Answer{})
		}
	}
}

// Reap declares a lease dead if it has expired, or with anyway in any case.
func (o *Op) Reap(l *Lease, anyway bool) {
	if l.reap(o.Now, anyway) {
		o.Died = append(o.Died, l)
	}
}
