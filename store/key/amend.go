package key

import (
	"bytes"
	"slices"

	"github.com/locksidecar/locksidecar/store"
)

// Amend checks a lock, and changes its data and remaining time.
func (o *Op) Amend(r *Row, c *store.Change) store.Amended {
	h, status := o.claimed(r, c.Token, c.Lease, false)
	if status == store.Holds {
		status = o.change(r, h, c)
	}
	return o.amended(r, h, status)
}

// Downgrade amends a lock, and makes an exclusive one a share. It grants the waiters that fit then.
func (o *Op) Downgrade(r *Row, c *store.Change) store.Amended {
	h, status := o.claimed(r, c.Token, c.Lease, false)
	if status == store.Holds {
		status = o.change(r, h, c)
	}
	if status == store.Holds {
		if h == &r.holder {
			h = r.downgrade(o.Now)
		}
		o.letIn(r)
	}
	return o.amended(r, h, status)
}

// Adopt makes the last served waiter of a cohort the exclusive holder that others see, and amends its lock.
func (o *Op) Adopt(r *Row, a *store.Adoption) store.Amended {
	h, status := o.claimed(r, a.Token, a.Lease, true)
	if status == store.Holds {
		r.dropServed(a.Served)
		o.adopt(r, a)
		status = o.change(r, h, &a.Change)
	}
	return o.amended(r, h, status)
}

func (o *Op) amended(r *Row, h *holder, status store.ClaimStatus) store.Amended {
	if status != store.Holds {
		return store.Amended{Status: status}
	}
	return store.Amended{Status: status, Lock: r.alone(h, o.Now)}
}

// change sets the remaining time and the data of a lock that the caller has checked, and ends that it is Keepable. It returns
// Expired if the lease of the lock was reaped at this moment.
func (o *Op) change(r *Row, h *holder, c *store.Change) store.ClaimStatus {
	if c.TTL > 0 && !h.lease.Renewed() && !o.prolong(r, h, c) {
		return store.Expired
	}
	o.unkeep(r, h)
	if c.SetData {
		h.Data = bytes.Clone(c.Data)
	}
	return store.Holds
}

// prolong sets the remaining time of a bind:ttl lock. It returns false if the lease has expired.
func (o *Op) prolong(r *Row, h *holder, c *store.Change) bool {
	before, ttl := h.lease.Remaining(o.Now), c.TTL
	if h.hold != nil {
		ttl = max(ttl, h.hold.Remaining(o.Now))
	}
	extended := o.Engine.Extend(h.lease, ttl, o.Now)
	if extended == nil {
		return false
	}
	if h.lease = extended; extended.Remaining(o.Now) < before {
		o.tellFirst(r)
	}
	return true
}

// adopt makes the last served waiter the holder, unless the row knows it or a later one.
func (o *Op) adopt(r *Row, a *store.Adoption) {
	if a.Token <= r.Token {
		return
	}
	o.released(r, &r.holder, store.NoOutcome, nil)
	r.Token, r.Attempt = a.Token, a.Served[len(a.Served)-1]
	r.Session, r.Owner, r.Traceparent, r.Data = a.Session, a.Owner, a.Traceparent, bytes.Clone(a.Data)
	if a.AcquiredAt.After(r.Acquired) {
		r.Acquired = a.AcquiredAt
	}
	o.event(r, r.Token, store.Event{Kind: store.EventAcquired})
}

// downgrade turns the exclusive holder into a share, with the limit of the living shared waiters.
func (r *Row) downgrade(now Moment) *holder {
	limit := 0
	if slices.ContainsFunc(r.queue.line, func(w *waiter) bool { return w.Shared && w.lease.Alive(now) }) {
		limit = r.limit
	}
	was := r.holder
	h := r.addShare(limit)
	*h = was
	h.Shared, r.Token = true, was.Token
	return h
}
