package conn

import (
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testing/await"
)

// The first poll leaves a call alone that may only just have begun; the second notices that
// its caller has left.
func TestCallIsPolledTwice(t *testing.T) {
	r := serve(t, Timeouts{Poll: time.Hour})
	nc := r.dial()
	r.send(nc, "wait\n", 1)
	_ = nc.Close()
	for range 2 {
		await.Silent(t, r.disconnected, "disconnect")
		poll(r.Conns())
	}
	await.Receive(t, r.disconnected, "the disconnect")
}

// A connection is watched as soon as its call begins, also if nobody looks at the context; and
// a call that is not cancelable goes on.
func TestCallIsWatchedFromItsBeginning(t *testing.T) {
	r := serve(t, Timeouts{Poll: time.Millisecond})
	nc := r.dial()
	r.send(nc, "carry out\n", 1)
	_ = nc.Close()
	c := await.Receive(t, r.disconnected, "the disconnect")
	if !c.InCall() || !c.CallerLeft() {
		t.Errorf("in a call: %v, caller left: %v", c.InCall(), c.CallerLeft())
	}
	r.answer <- struct{}{}
	r.gone()
}

// The timer runs only while a call is under way that has no guard.
func TestTimerRunsForYoungCallsOnly(t *testing.T) {
	r := serve(t, Timeouts{Poll: time.Millisecond})
	for _, long := range []bool{false, true, false, true} {
		nc := r.dial()
		r.send(nc, "answered\n", 1)
		r.reply(nc)
		await.Until(t, "the timer is stopped", r.Set.disconnects.asleep.Load)
		r.send(nc, "wait\n", 1)
		if long {
			await.Until(t, "the timer is stopped", r.Set.disconnects.asleep.Load)
		}
		_ = nc.Close()
		await.Receive(t, r.disconnected, "the disconnect")
		r.gone()
	}
}

// A call that had a guard leaves the connection as it was: with neither a deadline nor a byte
// less. If its request comes in two parts, the second is read under the request's deadline.
func TestConnectionAfterAGuardedCall(t *testing.T) {
	t.Parallel()
	r := serve(t, Timeouts{Poll: time.Millisecond})
	nc := r.dial()
	for _, parts := range []int{1, 2, 1} {
		if parts == 2 {
			r.send(nc, "wa", 0)
			await.Taken(t, nc)
		}
		r.send(nc, "it\n", 1)
		await.Until(t, "the timer is stopped", r.Set.disconnects.asleep.Load)
		r.send(nc, "sent ahead\n", 0)
		r.reply(nc)
		await.Receive(t, r.began, "the call that was sent ahead")
		r.reply(nc)
	}
	time.Sleep(unhurried * 5 / 4)
	r.send(nc, "later\n", 1)
	r.reply(nc)
	await.Silent(t, r.disconnected, "disconnect")
}
