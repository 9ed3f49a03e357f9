package lease

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/lease/internal/holdings"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// outages are the ways in which a store can be unavailable.
var outages = map[string]fault{
	"refuses": {refuse: true},
	"silent":  {lose: true},
	"forgets": {forget: true}, // carries everything out, but all answers are lost
	"hangs":   {before: time.Hour},
}

// A wait keeps its queue position through an outage that its lease survives.
func TestWaitKeepsItsPositionThroughAnOutage(t *testing.T) {
	for name, f := range outages {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, opt option) {
				r := newRig(t, opt)
				other := r.another(opt)
				o, s := other.eitherSession(), r.eitherSession()
				g := other.lock(o, "k")
				a := r.wait(s, "k", types.WaitForever)
				behind := other.wait(other.eitherSession(), "k", types.WaitForever)
				time.Sleep(6 * time.Second)
				for _, op := range everyOp {
					if op != "Renew" {
						r.st.set(op, f)
					}
				}
				time.Sleep(time.Minute)
				r.st.lift(everyOp...)
				if a.isOver() {
					t.Fatalf("error %v", a.err)
				}
				other.release(o, g)
				got := a.granted(t)
				if behind.isOver() {
					t.Error("overtaken")
				}
				r.release(s, got)
				behind.granted(t)
			})
		})
	}
}

// A wait whose lease ended in an outage begins again when the store is back.
// Proves: promise 5
func TestWaitGoesOnAfterItsLease(t *testing.T) {
	for name, f := range outages {
		for kind, req := range map[string]types.Request{
			"session":    {Key: "k", Wait: types.WaitForever},
			"ttl":        {Key: "k", Wait: types.WaitForever, Bind: types.BindTTL, TTL: time.Hour},
			"repeatable": {Key: "k", Wait: types.WaitForever, Bind: types.BindTTL, TTL: time.Hour, RequestID: uuid.New()},
			"limited":    {Key: "k", Wait: 10 * time.Minute},
		} {
			t.Run(name+" "+kind, func(t *testing.T) {
				bubble(t, func(t *testing.T, opt option) {
					r := newRig(t, opt)
					other := r.another(opt)
					o, s := other.eitherSession(), r.eitherSession()
					g := other.lock(o, "k")
					a := r.ask(context.Background(), s, req)
					time.Sleep(6 * time.Second)
					r.st.setAll(f)
					time.Sleep(2 * time.Minute)
					if a.isOver() {
						t.Fatalf("error %v during the outage", a.err)
					}
					r.st.lift(everyOp...)
					time.Sleep(3 * time.Second) // withdrawals are still in flight
					if a.isOver() {
						t.Fatalf("error %v after the outage", a.err)
					}
					other.release(o, g)
					got := a.granted(t)
					time.Sleep(time.Minute)
					r.mustBe(got) // the withdrawals are done
					r.release(s, got)
					r.nothingLeft()
				})
			})
		}
	}
}

// A wait continues through an outage that is shorter than its timeout. In a longer outage the wait
// ends in time. The end of the session, of the call and of the sidecar end it, too.
func TestWaitEndsDuringAnOutage(t *testing.T) {
	for name, end := range map[string]struct {
		how  func(r *rig, s *holdings.Session, leave context.CancelFunc)
		told error
	}{
		"time is up":   {func(*rig, *holdings.Session, context.CancelFunc) { time.Sleep(10 * time.Second) }, nil},
		"session ends": {func(_ *rig, s *holdings.Session, _ context.CancelFunc) { s.End(types.EndDeleted) }, types.ErrSessionEnded},
		"call leaves":  {func(_ *rig, _ *holdings.Session, leave context.CancelFunc) { leave() }, types.ErrCallerLeft},
		"drain":        {func(r *rig, _ *holdings.Session, _ context.CancelFunc) { r.m.Drain() }, types.ErrDraining},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, opt option) {
				r := newRig(t, opt)
				other := r.another(opt)
				g := other.lock(other.eitherSession(), "k")
				s := r.eitherSession()
				ctx, leave := context.WithCancel(context.Background())
				defer leave()
				a := r.ask(ctx, s, types.Request{Key: "k", Wait: 40 * time.Second})
				time.Sleep(6 * time.Second)
				r.st.setAll(fault{lose: true})
				time.Sleep(30 * time.Second)
				before := time.Now()
				end.how(r, s, leave)
				<-a.done
				var timeout *types.TimeoutError
				switch {
				case end.told != nil && (!errors.Is(a.err, end.told) || !a.at.Equal(before)):
					t.Errorf("error %v after %s", a.err, a.at.Sub(before))
				case end.told == nil && (!errors.As(a.err, &timeout) || a.after != 40*time.Second):
					t.Errorf("error %v after %s", a.err, a.after)
				case timeout != nil && (timeout.Lock.Token != g.Token || timeout.Position != 1):
					t.Errorf("got %+v", timeout)
				}
				r.st.lift(everyOp...)
				time.Sleep(time.Minute)
				r.onlyOthersLeft(1)
			})
		})
	}
}

// A call during an outage fails at once, whether it waits or not.
func TestNewcomerDuringAnOutage(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		s := r.eitherSession()
		for _, op := range []string{"OpenLeases", "Acquire", "Enqueue"} {
			other := r.another(opt)
			other.lockTTL(op, time.Hour)
			r.st.set(op, fault{refuse: true})
			a := r.ask(context.Background(), s, types.Request{Key: op, Wait: time.Hour, TTL: time.Minute})
			if <-a.done; !store.Unavailable(a.err) || a.after != 0 {
				t.Errorf("%s: error %v after %s", op, a.err, a.after)
			}
			r.st.lift(op)
			other.m.Stop()
			other.st.Stop()
		}
	})
}

// Many waits during an outage cause few openings of leases.
func TestManyWaitsDuringAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		other := r.another()
		g := other.lockTTL("k", time.Hour)
		s := r.eitherSession()
		var asked []*answer
		for range 200 {
			asked = append(asked, r.ask(context.Background(), s, types.Request{Key: "k", Wait: types.WaitForever}))
		}
		time.Sleep(6 * time.Second)
		r.st.setAll(fault{before: time.Millisecond, lose: true})
		time.Sleep(30 * time.Second)
		before := r.st.count("OpenLeases")
		r.st.away(true)
		time.Sleep(20 * time.Second)
		if n := r.st.count("OpenLeases") - before; n > 10 {
			t.Errorf("asked %d times in 20 s", n)
		}
		r.st.away(false)
		r.st.lift(everyOp...)
		time.Sleep(10 * time.Second)
		if n := r.stored("k").QueueLength; n != len(asked) {
			t.Errorf("%d queued", n)
		}
		other.release(nil, g)
		s.End(types.EndDropped)
		for _, a := range asked {
			<-a.done
		}
		time.Sleep(time.Minute)
		r.nothingLeft()
	})
}

// A call that has waited in the queue tries again as long as the store fails. Its earlier attempts do not stay in memory.
func TestAWaitThroughFailuresDoesNotGrow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		other := r.another()
		o := other.eitherSession()
		g := other.lock(o, "k")
		a := r.wait(r.eitherSession(), "k", types.WaitForever)
		r.st.set("Enqueue", fault{refuse: true})
		r.m.leases.Lose(r.m.leases.Get(r.m.cfg.TTL), types.LostExpired)
		heap := func() int {
			time.Sleep(time.Minute)
			r.st.mu.Lock()
			r.st.attempts = map[store.Attempt]bool{}
			r.st.mu.Unlock()
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			return int(m.HeapAlloc)
		}
		before, tried := heap(), r.st.count("Enqueue")
		time.Sleep(4 * time.Hour)
		tried = r.st.count("Enqueue") - tried
		if grown := heap() - before; tried < 10_000 || grown > 100*tried {
			t.Errorf("%d more bytes after %d attempts", grown, tried)
		}
		r.st.lift("Enqueue")
		other.release(o, g)
		r.release(a.s, a.granted(t))
	})
}
