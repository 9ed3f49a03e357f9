package conn

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testing/await"
)

// guarded waits until the only connection's call has a guard.
func (r *rig) guarded() {
	r.t.Helper()
	await.Until(r.t, "the call has a guard", func() bool {
		g := &r.Conns()[0].guard
		g.mu.Lock()
		defer g.mu.Unlock()
		return g.running != nil
	})
}

// The first tick leaves a call alone that may only just have begun. The second starts its guard, which notices that the caller
// left before.
// Proves: trap unseen disconnect
func TestShortCallHasNoGuard(t *testing.T) {
	r := serve(t, Timeouts{Guard: time.Hour})
	nc := r.dial()
	r.send(nc, "wait\n", 1)
	_ = nc.Close()
	for i, later := range []bool{true, false} {
		await.Silent(t, r.disconnected, "disconnect")
		if guardLongCalls(r.Conns()) != later {
			t.Errorf("tick %d: a call is left without a guard: %v", i+1, !later)
		}
	}
	await.Receive(t, r.disconnected, "the disconnect")
}

// The timer runs only while a call is under way that has no guard.
func TestTimerRunsForYoungCallsOnly(t *testing.T) {
	r := serve(t, Timeouts{Guard: time.Millisecond})
	for _, long := range []bool{false, true, false, true} {
		nc := r.dial()
		r.send(nc, "answered\n", 1)
		r.reply(nc)
		await.Until(t, "the timer is stopped", r.Set.guards.asleep.Load)
		r.send(nc, "wait\n", 1)
		if long {
			await.Until(t, "the timer is stopped", r.Set.guards.asleep.Load)
		}
		_ = nc.Close()
		await.Receive(t, r.disconnected, "the disconnect")
		r.gone()
	}
}

// A call is guarded from its beginning, also if nobody looks at the context; and
// a call that is not cancelable goes on.
// Proves: trap unseen disconnect
func TestCallIsGuardedFromItsBeginning(t *testing.T) {
	r := serve(t, Timeouts{Guard: time.Millisecond})
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

// noticing calls a function when its connection has closed.
type noticing struct {
	*Conn
	notice func()
}

func (n noticing) Disconnected() { n.notice() }

// When the owner hears of the close, and ends its session, the call's context has ended already. So a wait that
// finds its session ended knows the reason.
// Proves: trap unseen disconnect
func TestCallEndsBeforeItsSession(t *testing.T) {
	server, client := net.Pipe()
	defer func() { _, _ = server.Close(), client.Close() }()
	var ctx context.Context
	var noticed []error
	set := NewSet(Config{Log: quiet}, func(c *Conn) Owner {
		return noticing{c, func() { noticed = append(noticed, ctx.Err()) }}
	}, nil)
	c := newConn(set, server, Unix)
	ctx = c.BeginCall(context.Background(), true)
	c.guard.noticeClose(c.guard.call)
	if len(noticed) != 1 || noticed[0] == nil {
		t.Errorf("noticed %v, want once with the context's end", noticed)
	}
	if !c.EndCall() {
		t.Error("the caller has not left")
	}
}

// A call that had a guard leaves the connection as it was: with neither a deadline nor a byte
// less. If its request comes in two parts, the second is read under the request's deadline.
func TestConnectionAfterAGuardedCall(t *testing.T) {
	t.Parallel()
	r := serve(t, Timeouts{Guard: time.Millisecond})
	nc := r.dial()
	for _, parts := range []int{1, 2, 1} {
		if parts == 2 {
			r.send(nc, "wa", 0)
			await.Taken(t, nc)
		}
		r.send(nc, "it\n", 1)
		r.guarded()
		r.send(nc, "sent ahead\n", 0)
		r.reply(nc)
		await.Receive(t, r.began, "the call that was sent ahead")
		r.reply(nc)
	}
	time.Sleep(unhurried * 5 / 4)
	r.send(nc, "later\n", 1)
	r.reply(nc)
	await.Silent(t, r.disconnected, "disconnect")
	_ = nc.Close() // the next guard, or the read, notices this
	await.Receive(t, r.disconnected, "the disconnect")
}
