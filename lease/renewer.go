package lease

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/lease/internal/lanes"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// renewLoop renews the leases when they are due, in one statement for all, and tells
// the losers when one has passed its deadline. It runs until ctx ends.
func (m *Manager) renewLoop(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		timer.Reset(m.renewTick(ctx))
		select {
		case <-timer.C:
		case <-m.leases.wake:
		case <-ctx.Done():
			return
		}
	}
}

// renewTick does what is due and returns how long there is nothing to do.
func (m *Manager) renewTick(ctx context.Context) time.Duration {
	p := m.leases.plan(m.clk, m.cfg.RenewInterval)
	for _, l := range p.past {
		m.lose(l, l.lossReason())
	}
	for _, l := range p.idle {
		m.log.Debug("lease closed, nothing is held under it", "lease", l.id, "ttl", l.ttl.String())
		m.revoke(l)
	}
	if len(p.due) > 0 {
		m.spawn(func() { m.renew(ctx, p.due) })
	}
	return p.next
}

// plan is what the renewer has to do now.
type plan struct {
	past []*lease // past their deadline: lost
	idle []*lease // nothing is held under them: taken out, to be closed
	due  []*lease // to be renewed now
	next time.Duration
}

// plan looks through the leases. When one is due, those that are due soon come
// along: they share its statement, now and from then on.
func (b *leaseSet) plan(clk clock.Clock, configured time.Duration) plan {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := clk.Now()
	p := plan{next: time.Hour}
	var resting []*lease
	something := false
	for _, l := range b.allLocked() {
		switch {
		case l.life.Load() == nil: // being opened; book.changed tells
		case !l.alive(clock.Read(clk)):
			p.past = append(p.past, l)
		case l.renewing:
			p.next = min(p.next, l.life.Load().deadline.Sub(now))
		default:
			resting = append(resting, l)
			something = something || !l.renewAt.After(now)
		}
	}
	for _, l := range resting {
		p.next = min(p.next, l.life.Load().deadline.Sub(now))
		wait := l.renewAt.Sub(now)
		switch {
		case !something || wait > interval(l.ttl, configured)/2:
			p.next = min(p.next, wait)
		case l.users.Load() == 0 && (!l.used.Swap(false) || b.isRetiredLocked(l)):
			b.removeLocked(l) // b.mu is held: nothing can begin to use it
			p.idle = append(p.idle, l)
		default:
			l.renewing = true
			l.failing.Store(true) // until it is confirmed
			p.due = append(p.due, l)
		}
	}
	p.next = max(min(p.next, b.lingerLocked(now)), 0)
	b.nextAt = now.Add(p.next)
	return p
}

// renew sends one renewal for all leases that are due. After a failover, what is believed
// to be held under them is read before they are trusted.
func (m *Manager) renew(ctx context.Context, due []*lease) {
	r := renewal{m: m, sent: m.clk.Now(), early: clock.Jitter()}
	r.suspended = m.clk.Suspended(r.sent)
	answer, err := m.sendRenewal(ctx, due)
	kept := make(map[store.LeaseID]bool, len(answer.Kept))
	for _, id := range answer.Kept {
		kept[id] = true
	}
	if answer.Signals {
		m.signals.Poll()
	}
	var doubtful []*lease
	for _, l := range due {
		if slices.Contains(answer.Reconcile, l.id) {
			if m.leases.retire(l) {
				m.spawn(func() { m.rotate(l) })
				m.watches.LeaseEnded()
			}
			doubtful = append(doubtful, l)
			delete(kept, l.id) // it is not known what is held under it
			continue
		}
		r.apply(l, kept[l.id], err)
	}
	m.leases.changed()
	if len(doubtful) > 0 {
		unverified := m.verify(ctx, doubtful, answer.History, func(l *lease) {
			kept[l.id] = true
			r.apply(l, true, nil)
			m.leases.changed()
		})
		for _, l := range doubtful {
			if !kept[l.id] {
				r.apply(l, false, unverified)
			}
		}
		m.leases.changed()
		err = errors.Join(err, unverified)
	}
	if err != nil {
		m.log.Warn("leases not renewed, trying again", "leases", len(due), "error", err)
	}
	m.obs.Renewal(m.clk.Now().Sub(r.sent), len(due), len(kept), err)
}

// sendRenewal asks the store for a renewal.
func (m *Manager) sendRenewal(ctx context.Context, due []*lease) (store.Renewal, error) {
	var longest time.Duration
	for _, l := range due {
		longest = max(longest, l.remaining(clock.Read(m.clk)))
	}
	// The renewer sees to those that pass their deadline before: a lease that is too
	// short for a slow store must not cost the others their renewal.
	ctx, cancel := context.WithTimeout(ctx, min(m.cfg.StoreTimeout, longest))
	defer cancel()
	return m.st.Renew(ctx, idsOf(due))
}

// renewal is one that was sent at a time.
type renewal struct {
	m         *Manager
	sent      time.Time
	suspended time.Duration
	early     float64
}

// apply trusts a lease that was renewed, and sees when it is to be renewed again. One
// that was not, though there was no error, is lost.
func (r *renewal) apply(l *lease, ok bool, err error) {
	m := r.m
	next := m.clk.Now().Add(clock.RetryPause)
	if ok { // also when others could not be renewed
		next = r.sent.Add(time.Duration(float64(interval(l.ttl, m.cfg.RenewInterval)) * r.early))
	}
	if err == nil && !ok {
		m.lose(l, types.LostExpired)
		return
	}
	if ok && !l.confirm(m.clk, r.sent, r.suspended) {
		m.lose(l, l.lossReason()) // not confirmed in time
		return
	}
	l.failing.Store(!ok)
	m.leases.mu.Lock()
	l.renewing, l.renewAt = false, next
	m.leases.mu.Unlock()
}

func idsOf(leases []*lease) []store.LeaseID {
	ids := make([]store.LeaseID, len(leases))
	for i, l := range leases {
		ids[i] = l.id
	}
	return ids
}

// lossReason is why a lease that is past its deadline was not renewed.
func (l *lease) lossReason() types.LostReason {
	if l.failing.Load() {
		return types.LostStore
	}
	return types.LostExpired
}

// revoke declares an own lease dead in the background, as soon as the store
// answers. Should it not answer for long, the lease has expired anyway and
// whoever wants one of its keys revokes it.
func (m *Manager) revoke(l *lease) {
	m.leases.mustRevoke(l)
	confirmed := false
	m.inBackground(func(ctx context.Context) bool {
		_, err := lanes.Submit(ctx, m.lanes.Revocations, l.id)
		confirmed = err == nil
		return confirmed
	}, l.ttl+time.Minute, func() {
		if !confirmed && m.ctx.Err() != nil {
			return // Stop tries once more
		}
		if !confirmed {
			m.leftUnrevoked.Add(1)
		}
		m.leases.revoked(l)
	})
}
