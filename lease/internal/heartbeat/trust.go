package heartbeat

import (
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/clock"
)

// The sidecar trusts a lease until
//
//	send time of the last confirmed renewal + TTL - margin
//
// on the monotonic clock, unless the machine was suspended since that time: the monotonic clock stands still meanwhile. The store counts
// the TTL from when it carries the renewal out, which is later. So the sidecar stops trusting the lease before the store lets others have
// its locks. Every read checks this, because a timer may fire late.

const (
	// minMargin and marginShare: the margin is 5% of the TTL, and at least 50 ms. It covers clocks of different speeds, and the time to
	// notify the app.
	minMargin   = clock.SuspensionLimit // a lease survives a suspension that the margin covers
	marginShare = 20
)

// margin is how long before the store's expiry a lease is no longer trusted.
func margin(ttl time.Duration) time.Duration { return max(ttl/marginShare, minMargin) }

// Reliable is how long an app may rely on a lock that the store keeps for the time left. The app of a
// bind:ttl lock counts this time itself, because the sidecar does not report its end.
func Reliable(left time.Duration) time.Duration { return left - margin(left) }

// term is for how long one confirmed renewal, or the opening, lets the sidecar trust a lease. It never changes.
type term struct {
	deadline time.Time
	// suspended is how long the machine had been suspended in all when the renewal was sent.
	suspended time.Duration
}

// newTerm returns the term of a renewal that was sent at a time.
func newTerm(sent time.Time, suspended, ttl time.Duration) *term {
	return &term{deadline: sent.Add(ttl - margin(ttl)), suspended: suspended}
}

// holds reports whether the term is not over.
func (tm *term) holds(t clock.Tick) bool {
	return t.Now.Before(tm.deadline) && t.Suspended()-tm.suspended < clock.SuspensionLimit
}

// Alive reports whether the lease can be trusted now.
func (l *Lease) Alive(t clock.Tick) bool {
	if l.Lost() {
		return false
	}
	if !l.inTerm(t) {
		return false
	}
	next := l.next.Load() // the store may already have the lock under next
	return next == nil || next.Alive(t)
}

// inTerm reports whether the lease's own time is not over. It may be lost, or need another lease too: see MoveTo.
func (l *Lease) inTerm(t clock.Tick) bool {
	tm := l.term.Load()
	return tm != nil && tm.holds(t)
}

// Remaining is how long the lease can be trusted without another renewal.
func (l *Lease) Remaining(t clock.Tick) time.Duration {
	if !l.Alive(t) {
		return 0
	}
	left := max(l.term.Load().deadline.Sub(t.Now), 0)
	if next := l.next.Load(); next != nil {
		left = min(left, next.Remaining(t))
	}
	return left
}

// confirm begins a new term, because the store has confirmed a renewal or the opening. It returns false if the term before was over: a lease
// is never revived.
func (l *Lease) confirm(clk clock.Clock, sent time.Time, suspendedThen time.Duration) bool {
	if l.isOpen() && !l.Alive(clock.Read(clk)) {
		return false
	}
	l.term.Store(newTerm(sent, suspendedThen, l.ttl))
	return l.Alive(clock.Read(clk))
}

// isOpen reports whether the store has confirmed the opening.
func (l *Lease) isOpen() bool { return l.term.Load() != nil }

// Deadline is when the last term ends; zero if the lease was never open. The store may have a lost lease until then, too.
func (l *Lease) Deadline() time.Time {
	tm := l.term.Load()
	if tm == nil {
		return time.Time{}
	}
	return tm.deadline
}

// LostEarly reports whether the lease was lost early: it is lost, and its deadline has not come.
// Until the deadline the store may still have its locks, and apps that were not told yet may believe in them.
func (l *Lease) LostEarly(now time.Time) bool { return l.Lost() && now.Before(l.Deadline()) }
