package key

import (
	"bytes"
	"time"

	"github.com/locksidecar/locksidecar/store"
)

// Row is the state of a key. Its holder and that one's asker are embedded: r.Token, r.lease and r.Attempt are those of the holder.
// A row with only a Key is that of a key that nobody has asked for. A row is not
// safe for concurrent use.
type Row struct {
	Key string
	// holder is the exclusive holder, or the last one, which shows how its grant ended. Its lease is nil when
	// the key is free after a release. While there are shares, its lease is dead, and its token is that of
	// the youngest share.
	holder
	// shares are the shared holders in token order. A dead one blocks no asker.
	shares []*holder
	// limit is the one that shares and shared waiters name, while there are any.
	limit int
	// freed is when the key became free, in microseconds since 1970; zero means held or unknown.
	freed int64
	queue queue
	// skipped are waiters whose holder released with success. They stay until they are cancelled.
	skipped map[store.AttemptID]*skip
	// watchers are the instances that receive the key's events, by their names.
	watchers map[string]watcher
}

// asker is a waiter or holder of a key.
type asker struct {
	Asked
	// by is the instance that made the attempt.
	by *Instance
	// lease is the asker's renewed lease. In a row it is the lease that holds the key.
	lease *Lease
}

// Asked is what an asker wants, and shows.
type Asked struct {
	Attempt store.AttemptID `cbor:"10,keyasint,omitempty"`
	// TTL above zero asks for a bind:ttl lock, MinHold above zero for a MinHold.
	TTL     time.Duration `cbor:"11,keyasint,omitempty"`
	MinHold time.Duration `cbor:"12,keyasint,omitempty"`
	// Skip: after a success, this waiter wants the result instead of the lock.
	Skip bool `cbor:"13,keyasint,omitempty"`
	// Shared asks for a share. Limit above zero limits the number of shared holders.
	Shared      bool   `cbor:"14,keyasint,omitempty"`
	Limit       int    `cbor:"15,keyasint,omitempty"`
	Session     string `cbor:"16,keyasint,omitempty"`
	Owner       string `cbor:"17,keyasint,omitempty"`
	Traceparent string `cbor:"18,keyasint,omitempty"`
	Data        []byte `cbor:"19,keyasint,omitempty"`
}

func (o *Op) asker(ask *store.Ask, own *Lease) asker {
	return asker{
		by:    o.By,
		lease: own,
		Asked: Asked{
			Attempt:     ask.ID,
			TTL:         ask.TTL,
			MinHold:     ask.MinHold,
			Skip:        ask.Skip,
			Shared:      ask.Shared,
			Limit:       ask.Limit,
			Session:     ask.Session,
			Owner:       ask.Owner,
			Traceparent: ask.Traceparent,
			Data:        bytes.Clone(ask.Data),
		},
	}
}

// holder is a grant of a key. It is that of an attempt without a name if the lock was released and a hold
// keeps the key. Its lease may be expired or dead.
type holder struct {
	asker
	Grant
	// hold lasts as long as a MinHold keeps the key, with or without a holder. It is nil if there is no MinHold.
	hold *Lease
}

// Grant is what a holder got.
type Grant struct {
	Token    int64     `cbor:"20,keyasint,omitempty"`
	Acquired time.Time `cbor:"21,keyasint,omitempty"`
	// HandedBy is the trace context of the release that handed the key over, or empty.
	HandedBy string `cbor:"22,keyasint,omitempty"`
	// Released: the grant ended by a release, even if a hold still keeps the key.
	Released bool `cbor:"23,keyasint,omitempty"`
	// Stopping is set when the holder was asked to stop. It is only replaced as a whole.
	Stopping *store.Stopping `cbor:"24,keyasint,omitempty"`
	// Repeated: another instance made the same attempt and was answered Granted, too.
	Repeated bool `cbor:"25,keyasint,omitempty"`
	// Slot is the slot of a share; zero without a limit.
	Slot int `cbor:"26,keyasint,omitempty"`
	// Keepable: the instance may keep the key after its session has released the lock. See [store.Answer].
	Keepable bool `cbor:"27,keyasint,omitempty"`
}

// held reports whether a living lease holds the key, or a MinHold keeps it.
func (h *holder) held(now Moment) bool { return h.lease != nil && h.lease.Alive(now) || h.onHold(now) }

// onHold reports whether a MinHold keeps the key, with or without a holder.
func (h *holder) onHold(now Moment) bool { return h.hold != nil && h.hold.Alive(now) }

// visible reports whether there is a grant that keeps the key. The hold of a quiet time is none: nobody sees it, and nobody can end it.
func (h *holder) visible(now Moment) bool { return h.held(now) && !h.onQuietHold() }

// take makes an asker the holder. A bind:ttl lock lasts at least as long as its hold.
func (o *Op) take(h *holder, a *asker, key string) {
	h.asker = *a
	h.hold = nil
	if a.TTL > 0 {
		h.lease = o.Engine.Open(key, max(a.TTL, a.MinHold), o.Now)
	}
	if a.MinHold > 0 {
		h.hold = o.Engine.Hold(key, a.MinHold, o.Now)
	}
	h.Token, h.Acquired = o.Engine.Token(), o.Now.Wall
	h.Released, h.Stopping, h.Repeated, h.HandedBy, h.Keepable = false, nil, false, "", false
}

func (h *holder) granted(answer *store.Answer, now Moment) {
	answer.Outcome, answer.Token, answer.AcquiredAt, answer.Slot = store.Granted, h.Token, h.Acquired, h.Slot
	answer.ExpiresIn, answer.GrantedFor, answer.HandedBy = h.endsIn(now), h.heldFor(now), h.HandedBy
}

// endsIn is how long the grant keeps the key without further operations.
func (h *holder) endsIn(now Moment) time.Duration {
	if h.hold == nil {
		return h.lease.Remaining(now)
	}
	return max(h.lease.Remaining(now), h.hold.Remaining(now))
}

// grantedAgain answers a repeated attempt of the holder. If another instance repeated it, two instances may
// have delivered the same bind:ttl lock.
func (o *Op) grantedAgain(h *holder, answer *store.Answer) {
	h.Repeated = h.Repeated || !h.by.is(o.By)
	h.granted(answer, o.Now)
}

// mayBeUndelivered reports whether the instance may hand the lock back as undelivered. It may not if another
// instance may have delivered the lock.
func (o *Op) mayBeUndelivered(h *holder) bool {
	own := h.by.is(o.By)
	if h.lease.Renewed() || h.lease.Dead() {
		return own || !h.onHold(o.Now)
	}
	return own && !h.Repeated
}

// attempt returns the grant of an attempt. nil means that it was not granted, or was released.
func (r *Row) attempt(id store.AttemptID) *holder {
	if r.Attempt == id && r.lease != nil {
		return &r.holder
	}
	for _, h := range r.shares {
		if h.Attempt == id {
			return h
		}
	}
	return nil
}

// heldBy returns the grant that an attempt holds now, or nil.
func (r *Row) heldBy(id store.AttemptID, now Moment) *holder {
	if h := r.attempt(id); h != nil && h.lease.Alive(now) {
		return h
	}
	return nil
}

// vacate removes the holder and keeps the token. If the lock was not released, a dead lease stays to mark this.
func (r *Row) vacate(now Moment) {
	last := endedLease
	if r.Released {
		last = nil
	}
	r.asker = asker{lease: last}
	r.Stopping, r.hold, r.Keepable = nil, nil, false
	r.freed = now.Wall.UnixMicro()
}

// Wanted reports whether the row has waiters, skipped waiters or watchers.
func (r *Row) Wanted() bool { return r.queue.len()+len(r.skipped)+len(r.watchers) > 0 }

// Empty reports whether the row says no more than that of a key for which nobody has asked.
func (r *Row) Empty() bool { return r.Token == 0 && !r.Wanted() }

// Forgettable reports whether the key has been free for so long, and nobody waits for or watches it.
func (r *Row) Forgettable(now Moment, after time.Duration) bool {
	switch {
	case len(r.shares) > 0, r.lease != nil && r.freed == 0, r.onHold(now):
		return false
	default:
		return now.Wall.UnixMicro()-r.freed >= after.Microseconds() && !r.Wanted()
	}
}
