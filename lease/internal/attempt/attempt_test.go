package attempt

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/types"
)

// TestALeftAttemptHasWon: the call leaves at the moment in which its attempt is granted.
// Proves: trap give-up at the grant
func TestALeftAttemptHasWon(t *testing.T) {
	for _, bind := range []types.Bind{types.BindSession, types.BindTTL} {
		bubble(t, func(t *testing.T, inline bool) {
			r := newRig(t, inline)
			_, b := r.attempt(&types.Request{Key: "k", TTL: time.Minute, Wait: 1, Bind: bind})
			r.start(b)
			<-b.Ends()
			b.Cancel()
			r.nothingLeft()
		})
	}
}

// TestAnEndedSessionReceivesNothing: the session has ended, but its call does not know this yet, when the attempt is granted.
// Proves: promise 7
func TestAnEndedSessionReceivesNothing(t *testing.T) {
	bubble(t, func(t *testing.T, inline bool) {
		r := newRig(t, inline)
		c, b := r.attempt(&types.Request{Key: "k", TTL: time.Minute})
		<-c.S.End(types.EndDropped)
		r.start(b)
		<-b.Ends()
		if n := c.S.Held(); n != 0 {
			t.Errorf("holds %d", n)
		}
		r.nothingLeft()
	})
}

// TestWaiterIsWithdrawnWhenCancelsHaveStopped: a call leaves when the stopping sidecar no longer sends cancels. Its attempt is withdrawn,
// because it would otherwise get the key and keep it.
// Proves: promise 7
func TestWaiterIsWithdrawnWhenCancelsHaveStopped(t *testing.T) {
	bubble(t, func(t *testing.T, inline bool) {
		r := newRig(t, inline)
		release := r.st.HoldElsewhere(r.t, "k")
		_, b := r.attempt(&types.Request{Key: "k", Bind: types.BindTTL, TTL: time.Hour, Wait: types.WaitForever})
		r.start(b)
		r.aq.lanes.Cancels.Stop(context.Background())
		b.Cancel()
		synctest.Wait()
		release()
		r.nothingLeft()
	})
}

// TestLateCallReturnsNoGrant: a call that notices its grant after the deadline must not return it.
func TestLateCallReturnsNoGrant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, true)
		c, b := r.attempt(&types.Request{Key: "k", TTL: leaseTTL})
		r.start(b)
		r.Clock.Stop(b.Lease().TTL())
		if g, err := c.Await(b); err == nil {
			t.Errorf("granted %+v", g)
		}
	})
}

// TestLateCallReturnsTheRemainingTime: a bind:ttl grant is returned with its remaining time.
func TestLateCallReturnsTheRemainingTime(t *testing.T) {
	for late, want := range map[time.Duration]time.Duration{
		time.Second: 900 * time.Millisecond, 1900*time.Millisecond - 1: 1, 1900 * time.Millisecond: 0,
	} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, true)
			c, b := r.attempt(&types.Request{Key: "k", TTL: 2 * time.Second, Bind: types.BindTTL})
			r.start(b)
			r.Clock.Stop(late)
			g, err := c.Await(b)
			if g.ExpiresIn != want || (err == nil) != (want > 0) {
				t.Errorf("late by %s: %+v, %v", late, g, err)
			}
			if err == nil {
				r.aq.HandBack(nil, g)
			}
			r.nothingLeft()
		})
	}
}

// The wait of a call that only recalls a key may end at any moment before the attempt is queued. That ends no attempt which is on its way into the queue: its
// time begins there.
// Proves: trap recall
func TestARecallHasItsTimeInTheQueue(t *testing.T) {
	for _, phase := range []string{"enqueuing", "queued"} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, false)
			b, answer := r.attemptIn(phase, types.Request{TTL: leaseTTL})
			b.onlyRecalls = true
			b.timeIsUp()
			synctest.Wait()
			if sent := r.st.Sent(); len(sent) > 0 || b.leaving != 0 {
				t.Errorf("%s: sent %q, leaves because of %d", phase, sent, b.leaving)
			}
			answer(false)
			b.Cancel()
			synctest.Wait()
		})
	}
}
