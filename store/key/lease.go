package key

import (
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/store"
)

// dead is the expiry of a reaped lease. No clock is before it, so a dead lease is also expired.
const dead = math.MinInt64

// endedLease replaces the lease of a grant that ended while the row still shows the grant, or while its hold
// keeps the key. The real lease may live.
var endedLease = NewLease(store.LeaseID{}, nil, "", 0)

// Lease is a lease that rows name. Rows of one engine may share it: all methods are safe for concurrent use.
type Lease struct {
	id store.LeaseID
	// by is the instance that opened a renewed lease. The others belong to one bind:ttl lock each, on key.
	by  *Instance
	key string
	ttl time.Duration

	// mu guards changes of the following fields, so that renewals and reaps are ordered. No other mutex is
	// locked under it.
	mu sync.Mutex
	// expires is in nanoseconds on the clock of the moments, or dead. Readers do not lock mu.
	expires atomic.Int64
	// signals are those that holders under this lease have not acknowledged.
	signals []store.Signal
}

// NewLease makes a dead lease. An instance renews it, unless by is nil: then it is that of a lock of this key.
func NewLease(id store.LeaseID, by *Instance, key string, ttl time.Duration) *Lease {
	l := &Lease{id: id, by: by, key: key, ttl: ttl}
	l.expires.Store(dead)
	return l
}

// LiveFor lets a lease live for this time, and returns it. It is for leases that no other goroutine knows yet.
func (l *Lease) LiveFor(d time.Duration, now Moment) *Lease {
	l.expires.Store(now.At + int64(d))
	return l
}

// ID returns the name of the lease.
func (l *Lease) ID() store.LeaseID { return l.id }

// By returns the instance that renews the lease, or nil.
func (l *Lease) By() *Instance { return l.by }

// Renewed reports whether an instance renews the lease. The others belong to one bind:ttl lock each.
func (l *Lease) Renewed() bool { return l.by != nil }

// Key returns the key of a bind:ttl lock.
func (l *Lease) Key() string { return l.key }

// TTL is the time by which a renewal extends the lease.
func (l *Lease) TTL() time.Duration { return l.ttl }

// Alive reports whether the lease has not expired.
func (l *Lease) Alive(now Moment) bool { return l.expires.Load() > now.At }

// Dead reports whether the lease was declared dead.
func (l *Lease) Dead() bool { return l.expires.Load() == dead }

// Remaining is how long the lease still lasts. It is zero or less after the expiry.
func (l *Lease) Remaining(now Moment) time.Duration {
	e := l.expires.Load()
	if e == dead {
		return 0
	}
	return time.Duration(e - now.At)
}

// Extend lets a living lease last for ttl from now on. It never revives an expired one. It also reports
// whether there are signals.
func (l *Lease) Extend(now Moment, ttl time.Duration) (extended, signals bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.Alive(now) {
		return false, false
	}
	l.expires.Store(now.At + int64(ttl))
	return true, len(l.signals) > 0
}

// kill marks the lease dead. It returns true for only one caller.
func (l *Lease) kill() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.killLocked()
}

func (l *Lease) killLocked() bool {
	if l.Dead() {
		return false
	}
	l.expires.Store(dead)
	l.signals = nil
	return true
}

// reap marks the lease dead if it has expired, or with anyway in any case. It returns true for only one caller.
func (l *Lease) reap(now Moment, anyway bool) (died bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return (anyway || !l.Alive(now)) && l.killLocked()
}

// Signals returns the requests to holders under this lease.
func (l *Lease) Signals() []store.Signal {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.signals)
}

// Acknowledge forgets signals.
func (l *Lease) Acknowledge(signals []store.SignalID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.signals = slices.DeleteFunc(l.signals, func(g store.Signal) bool { return slices.Contains(signals, g.ID) })
}

// signal adds a signal to a holder under this lease. It replaces unread ones of the same kind for this
// grant, and for grants before the oldest holder of the key. It returns false if the lease is dead.
func (l *Lease) signal(g store.Signal, oldest int64, e Engine) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.Dead() {
		return false
	}
	l.signals = slices.DeleteFunc(l.signals, func(before store.Signal) bool {
		return before.Key == g.Key && before.Kind == g.Kind && (before.Token == g.Token || before.Token < oldest)
	})
	g.ID = e.NextSignal()
	l.signals = append(l.signals, g)
	return true
}

func (l *Lease) moveSignals(key string, token int64, to *Lease) {
	var of []store.Signal
	l.mu.Lock()
	l.signals = slices.DeleteFunc(l.signals, func(g store.Signal) bool {
		its := g.Key == key && g.Token == token
		if its {
			of = append(of, g)
		}
		return its
	})
	l.mu.Unlock()
	to.mu.Lock()
	defer to.mu.Unlock()
	to.signals = append(to.signals, of...)
}
