package cas

import (
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/key"
)

// A turn is the [key.Engine] of its run of the key machine: the machine calls the methods of this file. They change nothing on the server. They note
// what the swap must do, or what must be done before or after it.

var _ key.Engine = (*turn)(nil)

// Token returns a provisional token.
func (t *turn) Token() int64 {
	t.tokens++
	return provisional + t.tokens - 1
}

// Reserve keeps tokens for a cohort. Those of a grant that the record has are kept if they are below what this swap and
// later ones give away.
func (t *turn) Reserve(upTo int64) bool {
	if upTo < provisional {
		return upTo < t.job.rec.Base+int64(t.job.rec.Tokens)
	}
	t.tokens = max(t.tokens, upTo-provisional+1)
	return true
}

// Open notes a lease to be opened before the swap. If it may have died before a swap that took long, the next one
// lives longer.
func (t *turn) Open(name string, ttl time.Duration, now key.Moment) *key.Lease {
	if t.job.deaths > 0 {
		ttl += longerLife << min(t.job.deaths, 8)
	}
	l := key.NewLease(uuid.New(), nil, name, ttl).LiveFor(ttl, now)
	t.leases = append(t.leases, l)
	t.opened = append(t.opened, NewLease{NewLease: store.NewLease{ID: l.ID(), TTL: ttl}, Ends: t.job.hasEnding()})
	return l
}

// Hold does the same.
func (t *turn) Hold(name string, ttl time.Duration, now key.Moment) *key.Lease {
	return t.Open(name, ttl, now)
}

// Extend replaces the lease, because a server may not let a lease end earlier.
func (t *turn) Extend(l *key.Lease, ttl time.Duration, now key.Moment) *key.Lease {
	if !l.Alive(now) {
		return nil
	}
	t.Close(l)
	return t.Open(l.Key(), ttl, now)
}

// Close notes a lease to be revoked after the swap.
func (t *turn) Close(l *key.Lease) { t.closed = append(t.closed, l.ID()) }

// NextSignal returns an id that no other signal has.
func (t *turn) NextSignal() store.SignalID { return t.s.nextSignal() }
