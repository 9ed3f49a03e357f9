package lease

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/attempt"
	"github.com/locksidecar/locksidecar/lease/internal/holdings"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// cohort makes n calls of this sidecar wait for a key, which is handed to the first of them.
func (r *rig) cohort(other *rig, key string, n int) (calls []*answer, first types.Grant) {
	r.t.Helper()
	o := other.eitherSession()
	theirs := other.lock(o, key)
	for range n {
		calls = append(calls, r.wait(r.eitherSession(), key, types.WaitForever))
	}
	other.release(o, theirs)
	return calls, calls[0].granted(r.t)
}

// release releases the lock of a call.
func (a *answer) release(r *rig) {
	r.t.Helper()
	r.release(a.s, a.granted(r.t))
	synctest.Wait()
}

// The next waiters of the queue are of one sidecar. The sidecar serves them in their order, with
// growing tokens, without the store. Its last release reports all of them.
// Proves: promise 3
func TestACohortIsServedWithoutTheStore(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		other := r.another(opt)
		calls, first := r.cohort(other, "k", 5)
		theirs := other.wait(other.eitherSession(), "k", types.WaitForever)
		before := r.st.count("Release") + r.st.count("Adopt")
		for i, c := range calls[:4] {
			if g := c.granted(t); g.Token != first.Token+int64(i) || calls[i+1].isOver() || theirs.isOver() {
				t.Fatalf("call %d got %+v, the next is over: %v, theirs: %v", i, g, calls[i+1].isOver(), theirs.isOver())
			}
			c.release(r)
		}
		if n := r.st.count("Release") + r.st.count("Adopt") - before; n != 0 {
			t.Errorf("the store was asked %d times", n)
		}
		last := calls[4].granted(t)
		calls[4].release(r)
		if g := theirs.granted(t); g.Token <= last.Token {
			t.Errorf("token %d after %d", g.Token, last.Token)
		}
		theirs.release(other)
		r.nothingLeft()
	})
}

// A cohort does not overtake a waiter of another pod.
// Proves: promise 5
func TestACohortEndsAtAnotherPod(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		other := r.another(opt)
		o := other.eitherSession()
		held := other.lock(o, "k")
		var calls []*answer
		of := []*rig{r, r, other, r, other, other, r}
		for _, by := range of {
			calls = append(calls, by.wait(by.eitherSession(), "k", types.WaitForever))
		}
		other.release(o, held)
		for i, c := range calls {
			synctest.Wait()
			for j := range calls[i+1:] {
				if calls[i+1+j].isOver() {
					t.Fatalf("call %d is served before call %d", i+1+j, i)
				}
			}
			c.release(of[i])
		}
		r.nothingLeft()
	})
}

// In each of these cases the cohort ends, and the store chooses the next holder.
func TestCohortEnds(t *testing.T) {
	for name, end := range map[string]func(r, other *rig, c *answer){
		"its time is over": func(r, _ *rig, c *answer) { time.Sleep(attempt.CohortTime); c.release(r) },
		"an outcome":       func(r, _ *rig, c *answer) { r.succeed(c.s, c.granted(r.t)) },
		"asked to stop": func(r, other *rig, c *answer) {
			r.must(other.m.AskToStop(context.Background(), "k", 0, nil))
			if synctest.Wait(); len(r.stops()) != 1 {
				r.t.Fatalf("got %+v", r.stops())
			}
			c.release(r)
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, opt option) {
				r := newRig(t, opt)
				other := r.another(opt)
				calls, _ := r.cohort(other, "k", 4)
				calls[0].release(r)
				before := r.st.count("Release")
				end(r, other, calls[1])
				synctest.Wait()
				if r.st.count("Release") == before {
					t.Error("the store was not asked")
				}
				if n := len(r.stops()); calls[2].granted(t).Stopping != nil || n > 1 {
					t.Errorf("%d holders were asked to stop, and the next one is still asked", n)
				}
				calls[2].release(r)
				calls[3].release(r)
				r.nothingLeft()
			})
		})
	}
}

// Calls that left are passed over, because of their timeout or the end of their session.
// Proves: promise 5
func TestCohortPassesOverCallsThatLeft(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		other := r.another(opt)
		o := other.eitherSession()
		held := other.lock(o, "k")
		first := r.wait(r.eitherSession(), "k", types.WaitForever)
		short := r.wait(r.eitherSession(), "k", time.Second)
		ended := r.wait(r.eitherSession(), "k", types.WaitForever)
		last := r.wait(r.eitherSession(), "k", types.WaitForever)
		time.Sleep(time.Second - attempt.CohortTime/2)
		other.release(o, held)
		first.granted(t)
		time.Sleep(attempt.CohortTime * 3 / 4)
		ended.s.End(types.EndDropped)
		first.release(r)
		if !short.isOver() || short.err == nil || !ended.isOver() || ended.err == nil {
			t.Error("a call that left got the lock")
		}
		last.release(r)
		r.nothingLeft()
	})
}

// When a session ends, its lock goes to the next of the cohort.
func TestASessionsEndServesTheCohort(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		calls, first := r.cohort(r.another(opt), "k", 3)
		<-calls[0].s.End(types.EndDropped)
		if g := calls[1].granted(t); g.Token != first.Token+1 {
			t.Errorf("token %d after %d", g.Token, first.Token)
		}
		calls[1].release(r)
		calls[2].release(r)
		r.nothingLeft()
	})
}

// Other pods see the first holder of a cohort only for the cohort's time.
// Proves: promise 18
func TestOtherPodsSeeTheFirstOfACohort(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		calls, _ := r.cohort(r.another(opt), "k", 3)
		calls[0].release(r)
		g := calls[1].granted(t)
		r.must(r.patch(calls[1].s, g, `"mine"`))
		if l := r.stored("k"); l.Token != g.Token || string(l.Holder.Data) != `"mine"` || l.Holder.Session != calls[1].s.Name() {
			t.Errorf("after a change of its data: %+v", l)
		}
		calls[1].release(r)
		g = calls[2].granted(t)
		time.Sleep(attempt.CohortTime)
		synctest.Wait()
		if l := r.stored("k"); l.Token != g.Token || l.Holder.Data != nil || l.Holder.Session != calls[2].s.Name() || l.QueueLength != 0 {
			t.Errorf("held by %+v", l)
		}
		calls[2].release(r)
		r.nothingLeft()
	})
}

func (r *rig) patch(s *holdings.Session, g types.Grant, data string) error {
	_, err := r.m.Amend(context.Background(), s, types.AmendRequest{Key: g.Key, Token: g.Token, SetData: true, Data: []byte(data)})
	return err
}

// A break with a token ends only the grant with this token, and no later grant of the cohort.
// Proves: promise 17
func TestABreakMeansOneOfACohort(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		other := r.another(opt)
		calls, _ := r.cohort(other, "k", 4)
		seen, err := other.m.Get(context.Background(), nil, "k", true)
		r.must(err)
		calls[0].release(r)
		g := calls[1].granted(t)
		r.must(other.m.Break(context.Background(), seen.Lock, 0))
		if _, held := calls[1].s.GrantOf(r.m.holdings.Get("k")); !held {
			t.Fatal("the break of an earlier grant ended a later one")
		}
		mine, err := r.m.Get(context.Background(), calls[1].s, "k", false)
		r.must(err)
		if mine.Lock.Token != g.Token {
			t.Fatalf("shown as %+v", mine.Lock)
		}
		r.must(r.m.Break(context.Background(), mine.Lock, 0))
		if lost := r.losses(); len(lost) != 1 || lost[0].Token != g.Token || lost[0].Reason != types.LostForced {
			t.Errorf("lost %+v", lost)
		}
		calls[2].release(r)
		calls[3].release(r)
		r.nothingLeft()
	})
}

// A watch that begins during a cohort shows the first holder. When the store learns of the current
// holder, the watchers are notified, on this sidecar and on others.
// Proves: promise 16
func TestAWatchBeginsInACohort(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		other := r.another(opt)
		calls, first := r.cohort(other, "k", 4)
		calls[0].release(r)
		watchers := []*watcher{r.watch(nil, "k"), other.watch(nil, "k")}
		calls[1].release(r)
		third := calls[2].granted(t)
		time.Sleep(attempt.CohortTime)
		for _, w := range watchers {
			if w.view.Token != first.Token {
				t.Errorf("the watch begins with token %d, not %d", w.view.Token, first.Token)
			}
			if heard := w.want(released, acquired); heard[1].Lock.Token != third.Token {
				t.Errorf("notified of token %d, not %d", heard[1].Lock.Token, third.Token)
			}
		}
		for _, c := range calls[2:] {
			c.release(r)
		}
		for _, w := range watchers {
			w.want(released, acquired, released)
			w.stop()
		}
		r.nothingLeft()
	})
}

// If the lease dies, all calls of the cohort wait again, and the lock is lost once.
func TestACohortDiesWithItsLease(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		other := r.another(opt)
		calls, _ := r.cohort(other, "k", 3)
		calls[0].release(r)
		g := calls[1].granted(t)
		r.must(r.st.Store.Revoke(context.Background(), []store.LeaseID{r.lease()}))
		time.Sleep(r.m.cfg.RenewInterval)
		if lost := r.losses(); len(lost) != 1 || lost[0].Token != g.Token {
			t.Errorf("lost %+v", lost)
		}
		if again := calls[2].granted(t); again.Token <= g.Token {
			t.Errorf("token %d after %d", again.Token, g.Token)
		}
		calls[2].release(r)
		time.Sleep(time.Minute)
		r.nothingLeft()
	})
}

// A failover happens during a cohort. The lock stays the same, and its release hands it to the next
// call.
func TestACohortIsMovedAfterAFailover(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		calls, _ := r.cohort(r.another(opt), "k", 3)
		calls[0].release(r)
		g, old := calls[1].granted(t), r.lease()
		r.st.failover()
		time.Sleep(r.rotation())
		r.isRotated(old)
		if l := r.stored("k"); l.Token != g.Token || l.Holder.Lease != r.lease() || len(r.losses()) > 0 {
			t.Errorf("lost %+v, and the store has %+v", r.losses(), l)
		}
		calls[1].release(r)
		calls[2].release(r)
		r.nothingLeft()
	})
}

// cohortWithData returns a cohort of three calls, whose locks have the data "0", "1" and "2".
func (r *rig) cohortWithData(other *rig) (calls []*answer) {
	r.t.Helper()
	o := other.eitherSession()
	theirs := other.lock(o, "k")
	for i := range 3 {
		calls = append(calls, r.ask(context.Background(), r.eitherSession(), types.Request{
			Key: "k", Wait: types.WaitForever, Data: fmt.Appendf(nil, "%q", fmt.Sprint(i)),
		}))
		synctest.Wait()
	}
	other.release(o, theirs)
	calls[0].granted(r.t)
	return calls
}

// endAll ends the sessions of calls.
func endAll(calls []*answer) {
	for _, c := range calls {
		c.s.End(types.EndDropped)
	}
	time.Sleep(time.Minute)
}

// A waiter of the cohort may not be moved to the lock's lease yet. Then the store chooses the next
// holder.
func TestACohortOvertakesNoWaiterUnderAnotherLease(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		calls := r.cohortWithData(r.another(opt))
		old := r.m.leases.Get(r.m.cfg.TTL)
		to := r.m.leases.Pin(context.Background(), 2*r.m.cfg.TTL)
		defer to.Unpin()
		<-to.Opened()
		for _, b := range r.m.acquirer.Queue.WaitingUnder(old) {
			answers, err := r.st.Store.Check(context.Background(), []store.Attempt{b.Ref()})
			r.must(err)
			if answers[0].Position == 2 {
				if !b.BeginMove() {
					t.Fatal("the call does not wait")
				}
				b.Moved(to, b.EndMove)
			}
		}
		if !r.m.holdings.Get("k").Moved(to) {
			t.Fatal("the lock is not held")
		}
		calls[0].release(r)
		if calls[2].isOver() && !calls[1].isOver() {
			t.Error("the last waiter has overtaken the second")
		}
		endAll(calls)
	})
}

// If the store refuses a change of the data, the lock keeps its own data, not that of an earlier
// holder.
func TestARefusedChangeInACohort(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		calls := r.cohortWithData(r.another(opt))
		calls[0].release(r)
		g := calls[1].granted(t)
		r.st.set("Adopt", fault{refuse: true})
		if r.patch(calls[1].s, g, `"new"`) == nil {
			t.Fatal("it was not refused")
		}
		r.st.lift("Adopt")
		time.Sleep(10 * time.Second)
		if l := r.stored("k"); l.Token != g.Token || string(l.Holder.Data) != `"1"` {
			t.Errorf("token %d with the data %s, want token %d", l.Token, l.Holder.Data, g.Token)
		}
		endAll(calls)
	})
}

// A lock of a cohort that was lost during its move is freed under its new lease.
func TestALockOfACohortIsLostDuringItsMove(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		calls := r.cohortWithData(r.another(opt))
		calls[0].release(r)
		calls[1].granted(t)
		old, answer := r.lease(), make(chan struct{})
		r.st.set("Adopt", fault{refuse: true}) // the store does not learn of the second holder
		r.st.set("Move", fault{held: answer})
		r.st.failover()
		for r.st.count("Move") == 0 {
			time.Sleep(100 * time.Millisecond)
		}
		time.Sleep(time.Second)
		for _, l := range r.m.leases.All() {
			if l.ID() == old {
				r.m.leases.Lose(l, types.LostStore)
			}
		}
		synctest.Wait()
		calls[2].s.End(types.EndDropped)
		calls[1].s.End(types.EndDropped)
		r.st.lift("Move", "Adopt")
		close(answer)
		synctest.Wait()
		r.lock(calls[0].s, "busy") // keeps the new lease open
		time.Sleep(20 * time.Minute)
		if l := r.stored("k"); l.Held {
			t.Errorf("held without a holder in the sidecar: %+v", l)
		}
		endAll(calls)
	})
}

// A stop that the sidecar has not read yet is still there after the store learns of the next
// holder.
func TestAStopOutlivesTheChangeOfTheHolder(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		other := r.another(opt)
		calls := r.cohortWithData(other)
		calls[0].release(r)
		calls[1].granted(t)
		r.st.set("Signals", fault{refuse: true})
		r.must(other.m.AskToStop(context.Background(), "k", 0, nil))
		time.Sleep(2 * attempt.CohortTime)
		r.st.lift("Signals")
		time.Sleep(10 * time.Second)
		if h := r.m.holdings.Get("k"); h.State().Stopping == nil || r.stored("k").Stopping == nil {
			t.Errorf("in the sidecar %+v, in the store %+v", h.State().Stopping, r.stored("k").Stopping)
		}
		endAll(calls)
	})
}

// A stop that arrives between two holders of a cohort is delivered to the second, because the store
// shows it for the second.
// Proves: promise 17
func TestAStopBetweenTwoHolders(t *testing.T) {
	for _, moment := range []int{3, 4, 5, 6, -1} { // the nth read of the clock; -1: before the second call returns
		bubble(t, func(t *testing.T, opt option) {
			r := newRig(t, opt)
			other := r.another(opt)
			r.lock(r.eitherSession(), "another") // so that signals are read meanwhile
			calls := r.cohortWithData(other)
			calls[0].release(r)
			g := calls[1].granted(t)
			reason := "why"
			ask := func() {
				r.must(other.m.AskToStop(context.Background(), "k", 0, &reason))
				synctest.Wait()
			}
			if moment < 0 {
				r.counts.onHandOff = ask
			} else {
				r.clk.atRead(moment, ask)
			}
			r.release(calls[1].s, g)
			last := calls[2].granted(t)
			time.Sleep(attempt.CohortTime)
			synctest.Wait()
			l, told := r.stored("k"), r.stops()
			if l.Token != last.Token || l.Stopping == nil {
				t.Errorf("the store shows %+v", l)
			}
			if len(told) != 1 || told[0].Token != last.Token || *told[0].Reason != reason {
				t.Errorf("got %+v, want token %d", told, last.Token)
			}
			if h := r.m.holdings.Get("k"); h.State().Stopping == nil {
				t.Error("the sidecar does not show the stop")
			}
			r.must(other.m.AskToStop(context.Background(), "k", 0, &reason))
			if n := len(r.stops()); n != 1 {
				t.Errorf("delivered %d times", n)
			}
			endAll(calls)
		})
	}
}

// The time of a cohort ends between two holders. The store learns of the second one.
func TestStoreLearnsOfALateHandOn(t *testing.T) {
	for read := range 6 {
		bubble(t, func(t *testing.T, opt option) {
			r := newRig(t, opt)
			calls := r.cohortWithData(r.another(opt))
			calls[0].release(r)
			g := calls[1].granted(t)
			synctest.Wait()
			time.Sleep(attempt.CohortTime - time.Nanosecond)
			r.clk.atRead(read, func() { time.Sleep(time.Millisecond) })
			released := make(chan struct{})
			go func() { defer close(released); r.release(calls[1].s, g) }()
			<-released
			r.clk.next.Store(nil)
			last := calls[2].granted(t)
			time.Sleep(10 * time.Second)
			if l := r.stored("k"); l.Token != last.Token {
				t.Errorf("at read %d: token %d in the store, want %d", read, l.Token, last.Token)
			}
			endAll(calls)
		})
	}
}

// The sidecar handed a lock on, and its holder sets data and makes it a share. The store adopts the holder with the data, and then somebody
// locks the row. Something has changed, so the answer must not say that nothing has.
// Proves: promise 9
func TestARowThatIsLockedAfterAnAdoption(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		calls := r.cohortWithData(r.another(opt))
		calls[0].release(r)
		g := calls[1].granted(t)
		r.st.set("Adopt", fault{times: 1, then: func() { r.st.lockRows("k") }})
		_, err := r.m.Amend(context.Background(), calls[1].s, types.AmendRequest{Key: "k", Token: g.Token, SetData: true, Data: []byte(`"new"`), Share: true})
		if data := string(r.stored("k").Holder.Data); err == nil || data != `"new"` || !store.OutcomeUnknown(err) {
			t.Errorf("the data is %s; told %v, of unknown outcome: %v", data, err, store.OutcomeUnknown(err))
		}
		r.st.lockRows()
		endAll(calls)
	})
}
