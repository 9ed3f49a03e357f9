package lease

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

func TestDrain(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		s, other := r.eitherSession(), r.eitherSession()
		g := r.lock(s, "k")
		waiting := []*answer{
			r.wait(other, "k", types.WaitForever),
			r.ask(context.Background(), nil, types.Request{Key: "k", Wait: time.Hour, Bind: types.BindTTL, TTL: time.Hour}),
		}
		synctest.Wait()
		r.m.Drain()
		r.m.Drain()
		for _, a := range waiting {
			if <-a.done; !errors.Is(a.err, types.ErrDraining) || a.after != 0 {
				t.Errorf("error %v after %s", a.err, a.after)
			}
		}
		if _, err := r.try(s, "other"); !errors.Is(err, types.ErrDraining) {
			t.Errorf("acquire: error %v", err)
		}
		if _, err := r.m.OpenSession(types.SessionOptions{}); !errors.Is(err, types.ErrDraining) {
			t.Errorf("session: error %v", err)
		}
		if !errors.Is(r.m.Ready(), types.ErrDraining) {
			t.Error("still ready")
		}
		idle := r.m.Idle()
		time.Sleep(time.Minute) // locks stay held
		select {
		case <-idle:
			t.Error("idle, with a lock held")
		default:
		}
		r.must(r.amend(s, g))
		r.release(s, g)
		<-idle
		r.nothingLeft()
	})
}

// A call that waits for a permit to ask the store ends with the drain.
func TestDrainWhileTheStoreHasNoRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, with(func(c *types.Config) { c.BatchMax, c.MaxWaiters = 2, 2 }))
		s := r.explicitSession()
		proceed := r.st.hold("Acquire")
		for i := range 2 {
			r.ask(context.Background(), s, types.Request{Key: fmt.Sprint(i)})
		}
		synctest.Wait()
		single, group := r.wait(s, "k", types.WaitForever), r.waitAll(s, "l")
		r.m.Drain()
		synctest.Wait()
		if !single.isOver() || !group.isOver() {
			t.Fatalf("over: %t and %t", single.isOver(), group.isOver())
		}
		if !errors.Is(single.err, types.ErrDraining) || !errors.Is(group.err, types.ErrDraining) {
			t.Errorf("error %v and %v", single.err, group.err)
		}
		proceed()
		s.End(types.EndDropped)
		r.nothingLeft()
	})
}

func TestStop(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		var reason types.EndReason
		s, err := r.m.OpenSession(types.SessionOptions{OnEnd: func(e types.EndReason) { reason = e }})
		r.must(err)
		for i := range 500 {
			r.lock(s, fmt.Sprint(i))
		}
		ttl := r.lockTTL("ttl", time.Hour)
		a := r.wait(s, "ttl", types.WaitForever)
		idle := r.m.Idle()
		var stops sync.WaitGroup
		for range 3 {
			stops.Go(r.m.Stop)
		}
		stops.Wait()
		<-a.done
		if reason != types.EndShutdown || a.err == nil {
			t.Errorf("session ended for %v, call's error %v", reason, a.err)
		}
		<-idle
		<-r.m.Idle()
		r.mustBe(ttl) // bind:ttl locks stay held
		r.onlyOthersLeft(1)
	})
}

// After Stop, every call returns an error and does not hang.
func TestCallsAfterStop(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		s := r.eitherSession()
		g := r.lock(s, "k")
		r.lock(s, "other")
		r.m.Stop()
		ctx := context.Background()
		// These calls have passed Acquire's first check before Stop.
		for _, wait := range []time.Duration{0, time.Hour} {
			req := types.Request{Key: "k", TTL: r.m.cfg.TTL, Wait: wait}
			if _, err := r.m.acquirer.NewCall(ctx, s, &req).Run(); !errors.Is(err, types.ErrDraining) && !errors.Is(err, types.ErrSessionEnded) {
				t.Errorf("acquire: error %v", err)
			}
			req.Bind = types.BindTTL
			if _, err := r.m.acquirer.NewCall(ctx, nil, &req).Run(); !errors.Is(err, types.ErrDraining) {
				t.Errorf("acquire ttl: error %v", err)
			}
		}
		for name, err := range map[string]error{
			"release": r.tryRelease(nil, "unknown", g.Token),
			"amend":   r.amend(nil, types.Grant{Key: "unknown", Token: g.Token}),
			"get":     func() error { _, err := r.m.Get(ctx, nil, "k", true); return err }(),
		} {
			if !errors.Is(err, types.ErrDraining) {
				t.Errorf("%s: error %v", name, err)
			}
		}
		if lostReason(r.tryRelease(s, "k", g.Token)) != types.LostShutdown {
			t.Error("the reason was forgotten")
		}
		r.nothingLeft()
	})
}

func TestStopBeforeStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		m, err := New(r.m.cfg, r.st)
		r.must(err)
		m.Stop()
		r.must(m.Start(context.Background()))
		m.Stop()
	})
}

// Stop ends waiting calls that have not noticed the drain. Otherwise a bind:ttl waiter would get a
// lock that outlives the sidecar.
func TestStopAtOnceWhileCallsWait(t *testing.T) {
	for _, op := range []string{"", "Acquire", "Enqueue"} {
		bubble(t, func(t *testing.T, opt option) {
			for range 50 {
				r := newRig(t, opt)
				other := r.another(opt)
				o := other.eitherSession()
				g := other.lock(o, "k")
				if op != "" {
					r.st.set(op, fault{before: time.Second})
				}
				a := r.ask(context.Background(), nil, types.Request{Key: "k", Bind: types.BindTTL, TTL: time.Hour, Wait: types.WaitForever})
				synctest.Wait()
				r.m.Stop()
				if op == "" && r.stored("k").QueueLength != 0 {
					t.Error("still queued after Stop")
				}
				other.release(o, g)
				<-a.done
				if !errors.Is(a.err, types.ErrDraining) {
					t.Errorf("error %v", a.err)
				}
				time.Sleep(time.Minute)
				r.nothingLeft()
				other.m.Stop()
			}
		})
	}
}

// A store that hangs delays Stop by a few timeouts, independent of the number of queued calls.
func TestStopWithAStoreThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, with(func(c *types.Config) { c.BatchMax = 10 }))
		s := r.eitherSession()
		for i := range 1000 {
			r.lock(s, fmt.Sprint(i))
		}
		var asked []*answer
		for i := range 200 {
			asked = append(asked, r.ask(context.Background(), nil, types.Request{Key: fmt.Sprint(i), Bind: types.BindTTL, TTL: time.Hour, Wait: time.Minute}))
		}
		synctest.Wait()
		r.st.setAll(fault{before: time.Hour})
		for i := range 200 {
			asked = append(asked, r.ask(context.Background(), nil, types.Request{Key: fmt.Sprint("new", i), Bind: types.BindTTL, TTL: time.Hour, NoCache: true}))
		}
		synctest.Wait()
		began := time.Now()
		r.m.Stop()
		if took := time.Since(began); took > 4*r.m.cfg.StoreTimeout {
			t.Errorf("Stop took %s", took)
		}
		for _, a := range asked {
			if <-a.done; a.err == nil {
				t.Error("granted")
			}
		}
		r.st.lift(everyOp...)
		time.Sleep(time.Minute)
		r.nothingRemembered()
	})
}

// An attempt's call may notice the drain late. The attempt must not get a lock that outlives the
// sidecar.
func TestStopWhileACallIsSlow(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		for late := range 20 { // in the second half, the grant comes before the drain
			r := newRig(t, opt)
			other := r.another(opt)
			o := other.eitherSession()
			g := other.lock(o, "k")
			c := r.m.acquirer.NewCall(context.Background(), nil, &types.Request{Key: "k", Bind: types.BindTTL, TTL: time.Hour, Wait: types.WaitForever})
			b, err := c.NewAttempt(nil)
			r.must(err)
			b.Start(context.Background(), r.clk.Now())
			synctest.Wait()
			r.st.set("Revoke", fault{before: time.Second})
			if late >= 10 {
				other.release(o, g)
			}
			stopped := make(chan struct{})
			go func() {
				defer close(stopped)
				r.m.Stop()
			}()
			told := make(chan error, 1)
			time.AfterFunc(time.Duration(late%10)*200*time.Millisecond, func() {
				_, err := c.Await(b)
				told <- err
			})
			time.Sleep(time.Second / 2)
			if late < 10 {
				other.release(o, g)
			}
			<-stopped
			if err := <-told; err != nil && r.stored("k").Held {
				t.Fatalf("error %v, but the lock is held", err)
			}
			other.m.Stop()
		}
	})
}

// A session that is opened while the sidecar stops is refused or ended.
func TestSessionsOpenedDuringStop(t *testing.T) {
	t.Parallel()
	for range 100 {
		r := newRig(t, inline, with(func(c *types.Config) { c.MaxSessions = 1_000_000 }))
		var opened, ended atomic.Int64
		var openers sync.WaitGroup
		for range 4 {
			openers.Go(func() {
				for {
					if _, err := r.m.OpenSession(types.SessionOptions{OnEnd: func(types.EndReason) { ended.Add(1) }}); err != nil {
						return
					}
					opened.Add(1)
				}
			})
		}
		r.m.Stop()
		openers.Wait()
		if opened.Load() != ended.Load() {
			t.Fatalf("%d opened, %d ended", opened.Load(), ended.Load())
		}
	}
}

// Locks that a stopped manager could not hand back end with its leases.
func TestStopRevokesWhatCannotBeReleased(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		s := r.eitherSession()
		r.lock(s, "k")
		r.st.set("Release", fault{refuse: true})
		r.m.Stop()
		time.Sleep(time.Second)
		r.nothingLeft()
		if _, err := r.st.Store.Get(context.Background(), []string{"k"}); store.Unavailable(err) {
			t.Error("the manager stopped the store, which only its owner may do")
		}
	})
}
