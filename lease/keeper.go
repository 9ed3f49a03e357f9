package lease

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/locksidecar/locksidecar/store"
)

const (
	// renewJitter: a renewal is sent up to a tenth of the interval early, so that
	// many sidecars that started together do not stay in step.
	renewJitter = 0.1
	// renewRetry is how long after a failed renewal the next is tried.
	renewRetry = 250 * time.Millisecond
)

// keep renews the leases when they are due, in one statement for all, and tells
// the losers when one has passed its deadline. It runs until ctx ends.
func (m *Manager) keep(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		timer.Reset(m.tend(ctx))
		select {
		case <-timer.C:
		case <-m.book.wake:
		case <-ctx.Done():
			return
		}
	}
}

// tend does what is due and returns how long there is nothing to do.
func (m *Manager) tend(ctx context.Context) time.Duration {
	p := m.book.plan(m.clk, m.cfg.RenewInterval)
	for _, l := range p.past {
		m.lose(l, l.lossReason())
	}
	for _, l := range p.idle {
		m.log.Debug("lease closed, nothing rides on it", "lease", l.id, "ttl", l.ttl.String())
		m.bury(l)
	}
	if len(p.due) > 0 {
		m.spawn(func() { m.renew(ctx, p.due) })
	}
	return p.next
}

// plan is what the keeper has to do now.
type plan struct {
	past []*renewed // past their deadline: lost
	idle []*renewed // nothing rides on them: taken out, to be closed
	due  []*renewed // to be renewed now
	next time.Duration
}

// plan looks through the leases. When one is due, those that are due soon come
// along: they share its statement, now and from then on.
func (b *book) plan(clk Clock, configured time.Duration) plan {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := clk.Now()
	p := plan{next: time.Hour}
	var resting []*renewed
	something := false
	for _, l := range b.allLocked() {
		switch {
		case l.life.Load() == nil: // being opened; book.changed tells
		case !l.alive(clk):
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
		case l.riders.Load() == 0 && !l.used.Swap(false):
			b.removeLocked(l) // b.mu is held: nothing can begin to ride on it
			p.idle = append(p.idle, l)
		default:
			l.renewing = true
			l.failing.Store(true) // until it is confirmed
			p.due = append(p.due, l)
		}
	}
	p.next = max(p.next, 0)
	b.nextAt = now.Add(p.next)
	return p
}

// renew sends one renewal for all leases that are due.
func (m *Manager) renew(ctx context.Context, due []*renewed) {
	ids := make([]store.LeaseID, len(due))
	var longest time.Duration
	for i, l := range due {
		ids[i] = l.id
		longest = max(longest, l.remaining(m.clk))
	}
	// The keeper sees to those that pass their deadline before: a lease that is too
	// short for a slow store must not cost the others their renewal.
	ctx, cancel := context.WithTimeout(ctx, min(m.cfg.StoreTimeout, longest))
	defer cancel()
	sent := m.clk.Now()
	suspended := m.clk.Suspended(sent)
	renewal, err := m.st.Renew(ctx, ids)
	if err != nil {
		m.log.Warn("leases not renewed, trying again", "leases", len(due), "error", err)
	}
	if renewal.Signals {
		m.signals.look()
	}
	m.renewed(sent, len(due), len(renewal.Kept), err)
	early := jitter()
	kept := make(map[store.LeaseID]bool, len(renewal.Kept))
	for _, id := range renewal.Kept {
		kept[id] = true
	}
	for _, l := range due {
		next := m.clk.Now().Add(renewRetry)
		ok := kept[l.id] // also when others could not be renewed
		if ok {
			next = sent.Add(time.Duration(float64(interval(l.ttl, m.cfg.RenewInterval)) * early))
		}
		if err == nil && !ok {
			m.lose(l, LostExpired)
			continue
		}
		if ok && !l.confirm(m.clk, sent, suspended) {
			m.lose(l, l.lossReason()) // not confirmed in time
			continue
		}
		l.failing.Store(!ok)
		m.book.mu.Lock()
		l.renewing, l.renewAt = false, next
		m.book.mu.Unlock()
	}
	m.book.changed()
}

// lossReason is why a lease that is past its deadline was not renewed.
func (l *renewed) lossReason() LostReason {
	if l.failing.Load() {
		return LostStore
	}
	return LostExpired
}

// bury declares an own lease dead in the background, as soon as the store
// answers. Should it not answer for long, the lease has expired anyway and
// whoever wants one of its keys buries it.
func (m *Manager) bury(l *renewed) {
	m.book.dies(l)
	confirmed := false
	m.inBackground(func(ctx context.Context) bool {
		_, err := submit(ctx, m.burials, l.id)
		confirmed = err == nil
		return confirmed
	}, l.ttl+time.Minute, func() {
		if !confirmed && m.ctx.Err() != nil {
			return // Stop tries once more
		}
		if !confirmed {
			m.unburied.Add(1)
		}
		m.book.buried(l)
	})
}

// jitter is a share of an interval, at most 1.
func jitter() float64 { return 1 - renewJitter*rand.Float64() }

func jittered(d time.Duration) time.Duration { return time.Duration(float64(d) * jitter()) }
