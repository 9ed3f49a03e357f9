package lease

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/attempt"
	"github.com/locksidecar/locksidecar/lease/internal/heartbeat"
	"github.com/locksidecar/locksidecar/lease/internal/holdings"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// won returns a call whose attempt is granted, but has not been delivered.
func (r *rig) won(s *holdings.Session, req types.Request) (*attempt.Call, *attempt.Attempt) {
	c := r.m.acquirer.NewCall(context.Background(), s, &req)
	r.must(s.Admit(&c.Admission))
	b, err := c.NewAttempt(nil)
	r.must(err)
	b.Start(context.Background(), r.clk.Now())
	<-b.Ends()
	return c, b
}

// A lock that is lost before its call returns is reported neither as held nor as lost.
// Proves: promise 2
func TestLostBeforeDelivery(t *testing.T) {
	for name, lose := range map[string]func(*rig, *holdings.Lock){
		"broken":                 func(_ *rig, h *holdings.Lock) { h.LoseAndRelease(types.LostForced) },
		"max_hold over, noticed": func(*rig, *holdings.Lock) { time.Sleep(time.Minute) },
		"max_hold over":          func(r *rig, _ *holdings.Lock) { r.clk.stop(time.Minute) },
		"lease lost":             func(r *rig, h *holdings.Lock) { r.m.leases.Lose(h.Lease(), types.LostStore) },
		"past its deadline":      func(r *rig, h *holdings.Lock) { r.clk.stop(heartbeat.Reliable(h.Lease().TTL())) },
	} {
		for _, hold := range []time.Duration{0, time.Second} {
			t.Run(name, func(t *testing.T) {
				bubble(t, func(t *testing.T, opt option) {
					r := newRig(t, opt)
					s := r.eitherSession()
					c, b := r.won(s, types.Request{Key: "k", TTL: 15 * time.Second, MinHold: hold, MaxHold: 30 * time.Second})
					if s.Held() != 0 || s.Find("k", r.m.holdings.Get("k").Token) != nil {
						t.Error("the session holds a lock that was not delivered")
					}
					lose(r, r.m.holdings.Get("k"))
					g, err := c.Await(b)
					s.Leave(&c.Admission)
					if err == nil {
						t.Errorf("delivered %+v", g)
					}
					time.Sleep(time.Minute)
					if lost := r.losses(); len(lost) != 0 || s.Held() != 0 || len(r.counts.ended) != 0 {
						t.Errorf("reported %v as lost, %d held, %v counted", lost, s.Held(), r.counts.ended)
					}
					r.isFree("k")
					s.End(types.EndDropped)
					r.nothingLeft()
				})
			})
		}
	}
}

// A lock may be broken at any moment of an acquire. The call returns a grant that is still held, or
// its loss is reported later.
func TestBrokenAtAnyMoment(t *testing.T) {
	for _, wait := range []time.Duration{0, types.WaitForever} {
		for moment := range 20 {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, inline)
				s := r.eitherSession()
				r.lock(s, "warm")
				r.clk.atRead(moment, func() {
					if h := r.m.holdings.Get("k"); h != nil {
						go h.LoseAndRelease(types.LostForced) // in a goroutine, because the reader of the clock may hold a mutex
					}
				})
				g, err := r.m.Acquire(context.Background(), s, types.Request{Key: "k", Wait: wait})
				r.must(err)
				r.clk.next.Store(nil)
				synctest.Wait()
				lost := slices.ContainsFunc(r.losses(), func(l types.Lost) bool { return l.Token != g.Token })
				if told := len(r.losses()) == 1; lost || told == (s.Find("k", g.Token) != nil) {
					t.Errorf("moment %d: returned %+v and reported %v", moment, g, r.losses())
				}
				s.End(types.EndDropped)
				r.nothingLeft()
			})
		}
	}
}

// A wait that is lost again and again pauses between the tries, longer each time.
func TestWaitThatIsLostAgainAndAgainRests(t *testing.T) {
	for name, c := range map[string]struct {
		op   string
		lose func(*rig)
	}{
		"the queue position is gone": {"Enqueue", func(r *rig) {
			for _, b := range r.m.acquirer.Queue.Waiting() {
				_, err := r.st.Store.Cancel(context.Background(), []store.Attempt{b.Ref()})
				r.must(err)
			}
			r.m.News(store.EveryWait)
		}},
		"the lease is dead": {"OpenLeases", func(r *rig) {
			go func() { time.Sleep(time.Nanosecond); r.revokeLeases() }()
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				other := r.another()
				o := other.eitherSession()
				g := other.lock(o, "k")
				r.st.set(c.op, fault{after: time.Millisecond, then: func() { c.lose(r) }})
				s := r.eitherSession()
				a := r.ask(context.Background(), s, types.Request{Key: "k", Wait: time.Minute})
				time.Sleep(30 * time.Second)
				if n := r.st.count(c.op); n > 60 {
					t.Errorf("tried %d times in 30 s", n)
				}
				r.st.lift(c.op)
				time.Sleep(2 * attempt.RestMax)
				other.release(o, g)
				r.release(s, a.granted(t))
				if a.after > 40*time.Second {
					t.Errorf("granted after %s", a.after)
				}
				time.Sleep(time.Minute)
				r.nothingLeft()
			})
		})
	}
}

// The timeout of a wait includes its pauses. A question that is under way then is answered first.
func TestTimeIsUpWhileAWaitRests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.st.set("OpenLeases", fault{then: func() { go func() { time.Sleep(time.Nanosecond); r.revokeLeases() }() }})
		const question = time.Millisecond
		r.st.set("Acquire", fault{before: question})
		a := r.ask(context.Background(), r.eitherSession(), types.Request{Key: "k", Wait: 10 * time.Second})
		if <-a.done; !errors.As(a.err, new(*types.TimeoutError)) || a.after < 10*time.Second || a.after > 10*time.Second+question {
			t.Errorf("error %v after %s", a.err, a.after)
		}
	})
}
