package key

import (
	"github.com/locksidecar/locksidecar/store"
)

// Acquire takes the key if it is available. own is the ask's Lease; nil if the engine does not know it. Acquire writes
// into an empty answer, because copying the large struct takes time.
func (o *Op) Acquire(r *Row, ask *store.Ask, own *Lease, answer *store.Answer) {
	o.ask(r, ask, own, false, answer)
}

// Enqueue takes the key if it is available, and otherwise queues the ask.
func (o *Op) Enqueue(r *Row, ask *store.Ask, own *Lease, answer *store.Answer) {
	o.ask(r, ask, own, true, answer)
}

// ask tells the steps of an ask, each with a name. PostgreSQL's function ask (store/postgres/code/acquire.sql) has the same steps, with these names.
func (o *Op) ask(r *Row, ask *store.Ask, own *Lease, wait bool, answer *store.Answer) {
	// Repeat: it finds its grant.
	if h := r.heldBy(ask.ID, o.Now); h != nil {
		o.grantedAgain(h, answer)
		answer.Keepable = h.Keepable && h.by.is(o.By) && !r.wanted(o.Now) // otherwise a recall went out already
		return
	}
	// Skipped: a release with success has skipped the waiter.
	if k := r.skipped[ask.ID]; k != nil && wait {
		*answer = k.answer()
		return
	}
	// Lease: the asker needs a living one.
	if (wait || AcquireNeedsLease(ask)) && (own == nil || !own.Renewed() || !own.Alive(o.Now)) {
		answer.Outcome = store.LeaseLost
		return
	}
	// Available? Settle ends dead holders, and hands the key on. Then it says.
	// Limit, Held: if the key is not available, join refuses another limit, gives a share, queues the asker, or answers with the holder.
	available := o.Settle(r)
	if !available {
		available = o.join(r, ask, own, wait, answer)
	}
	if !available {
		return
	}
	// Quiet: in the quiet time nothing is granted.
	if o.Quiet > 0 {
		o.askInQuiet(r, ask, own, wait, answer)
		return
	}
	// Grant.
	a, again := o.asker(ask, own), o.comesAgain(r, ask)
	h := o.grant(r, &a)
	h.Keepable = again && o.Engine.Reserve(h.Token+store.TokensPerGrant-1)
	h.granted(answer, o.Now)
	answer.Keepable = h.Keepable
}

// AcquireNeedsLease reports whether an Acquire needs a living lease. Only that of a bind:ttl lock needs none; an Enqueue
// always needs one.
func AcquireNeedsLease(ask *store.Ask) bool { return ask.TTL <= 0 }

// join reports whether an asker can have a share beside other holders. If not, it writes the answer.
func (o *Op) join(r *Row, ask *store.Ask, own *Lease, wait bool, answer *store.Answer) bool {
	h := r.heldBy(ask.ID, o.Now)
	switch {
	case h != nil: // the reap of a holder granted the key to this waiter
		o.grantedAgain(h, answer)
	case ask.Shared && o.mismatch(r, ask.Limit):
		answer.Outcome = store.LimitMismatch
		r.blockers(&answer.Lock, o.Now)
	case ask.Shared && r.mayJoin(ask.ID):
		return true
	case wait:
		o.wait(r, ask, own, answer)
	case len(r.shares) == 0 && r.onQuietHold():
		*answer = store.Answer{Outcome: store.Quiet, QuietFor: r.hold.Remaining(o.Now)}
	default:
		answer.Outcome = store.Held
		r.blockers(&answer.Lock, o.Now)
	}
	return false
}

// wait enqueues an asker, or finds it in the queue. A queue position is lost with its lease. Because that
// waiter may have blocked others, letIn follows.
func (o *Op) wait(r *Row, ask *store.Ask, own *Lease, answer *store.Answer) {
	w := r.queue.find(ask.ID)
	if w != nil && (w.lease.id != own.id || !w.lease.Alive(o.Now)) {
		r.dequeue(w)
		w = nil
	}
	if w == nil {
		if !r.awaitedElsewhere(o.Now) {
			o.recall(r)
		}
		a := o.asker(ask, own)
		w = r.enqueue(&a, o.Now)
		o.letIn(r)
	}
	r.queued(answer, w, o.Now)
	if len(r.shares) > 0 || r.lease == nil || r.lease.id != own.id {
		return
	}
	if cohort := o.cohort(r); len(cohort) == answer.Position { // this waiter is the last in it
		answer.Cohort, answer.Alone = cohort, true
	}
}

func (r *Row) queued(answer *store.Answer, w *waiter, now Moment) {
	answer.Outcome, answer.Position = store.Queued, r.queue.position(w)
	r.blockers(&answer.Lock, now)
}

// askInQuiet answers an ask for an available key while nothing is granted.
func (o *Op) askInQuiet(r *Row, ask *store.Ask, own *Lease, wait bool, answer *store.Answer) {
	if !wait {
		*answer = store.Answer{Outcome: store.Quiet, QuietFor: o.Quiet}
		return
	}
	if len(r.shares) == 0 {
		o.holdQuiet(r)
	}
	o.wait(r, ask, own, answer)
}

// holdForWaiters holds a key without a holder for its living waiters until the quiet time is over. It reports whether
// there are any. Their checks then hand the key on, in order. Beside shares the key needs no hold.
func (o *Op) holdForWaiters(r *Row) (held bool) {
	for w := r.queue.first(); w != nil && !w.lease.Alive(o.Now); w = r.queue.first() {
		if o.Reap(w.lease, false); !w.lease.Dead() {
			break
		}
		r.dequeue(w)
	}
	if r.queue.len() == 0 || len(r.shares) > 0 {
		return false
	}
	o.holdQuiet(r)
	o.tellAll(r) // they learn when to check
	return true
}

// holdQuiet makes a hold without a holder. The last grant's token stays, and how it ended.
func (o *Op) holdQuiet(r *Row) {
	r.asker = asker{by: o.By, lease: endedLease}
	r.Stopping, r.freed, r.Acquired = nil, 0, o.Now.Wall
	r.hold = o.Engine.Hold(r.Key, o.Quiet, o.Now)
}

// onQuietHold reports whether a hold for the quiet time keeps the key, or did so last. Other holds have a MinHold.
func (h *holder) onQuietHold() bool { return h.hold != nil && h.MinHold == 0 }
