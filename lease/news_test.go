// Proves: promise 6

package lease

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/attempt"
	"github.com/locksidecar/locksidecar/lease/internal/hearing"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// handOver hands the key of a lock to its waiter, and drops the news.
func (r *rig) handOver(other *rig, key string, token int64) {
	r.t.Helper()
	r.st.mu.Lock()
	r.st.dropNews = true
	r.st.mu.Unlock()
	_, err := other.m.Release(context.Background(), nil, types.ReleaseRequest{Key: key, Token: token})
	r.must(err)
	synctest.Wait()
}

// hint sends the hint to check a key's waiter.
func (r *rig) hint(key string) {
	for _, b := range r.m.acquirer.Queue.Waiting() {
		if b.Key() == key {
			r.m.News(store.News{Attempt: b.Ref(), Lease: b.Lease().ID()})
		}
	}
}

// A hint makes the waiter check at once.
func TestHint(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		other := r.another(opt)
		g, kept := other.lockTTL("k", time.Hour), other.lockTTL("kept", time.Hour)
		s := r.eitherSession()
		a, b := r.wait(s, "k", types.WaitForever), r.wait(s, "kept", types.WaitForever)
		time.Sleep(time.Second)
		r.handOver(other, "k", g.Token)
		if a.isOver() {
			t.Fatal("the call ended without news")
		}
		before := time.Now()
		r.hint("k")
		if a.granted(t); time.Since(before) != 0 {
			t.Errorf("granted %s after the hint", time.Since(before))
		}
		if b.isOver() {
			t.Error("the other waiter was granted, too")
		}
		other.release(nil, kept)
		time.Sleep(10 * time.Second)
		s.End(types.EndDropped)
		r.nothingLeft()
	})
}

// A hint is not lost if it comes before the attempt is queued, or during a check.
func TestHintInBetween(t *testing.T) {
	for _, op := range []string{"Enqueue", "Check"} {
		t.Run(op, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				other := r.another()
				g := other.lockTTL("k", time.Hour)
				other.lockTTL("earlier", time.Hour)
				r.wait(r.eitherSession(), "earlier", types.WaitForever) // checked before k
				time.Sleep(time.Second)
				var a *answer
				var proceed func()
				if op == "Enqueue" {
					proceed = r.st.holdAnswer(op)
					a = r.wait(r.eitherSession(), "k", types.WaitForever)
				} else {
					a = r.wait(r.eitherSession(), "k", types.WaitForever)
					proceed = r.st.holdAnswer(op)
					r.hint("k") // its check finds no change, and the answer is slow
					synctest.Wait()
				}
				r.handOver(other, "k", g.Token)
				r.hint("k")
				synctest.Wait()
				before := time.Now()
				proceed()
				if a.granted(t); time.Since(before) > attempt.HintPause {
					t.Errorf("granted %s after", time.Since(before))
				}
			})
		})
	}
}

// Every wait is checked when news may have been missed. Afterwards, the trait of the store decides
// how often waits are checked.
func TestPollingComesAndGoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		other := r.another()
		s := r.eitherSession()
		var asked []*answer
		var tokens []int64
		for i := range 100 { // the most that one statement can check
			tokens = append(tokens, other.lockTTL(fmt.Sprint(i), 24*time.Hour).Token)
			asked = append(asked, r.wait(s, fmt.Sprint(i), types.WaitForever))
		}
		time.Sleep(time.Second)
		r.handOver(other, "3", tokens[3])
		before := time.Now()
		r.m.News(store.EveryWait)
		if asked[3].granted(t); time.Since(before) != 0 {
			t.Errorf("granted %s after", time.Since(before))
		}
		if n := r.st.asked("Check"); n != 100 || r.st.count("Check") != 1 {
			t.Errorf("%d checked in %d statements", n, r.st.count("Check"))
		}
		rate := func() int {
			before := r.st.count("Check")
			time.Sleep(20 * time.Second)
			return r.st.count("Check") - before
		}
		if n := rate(); n > 5 {
			t.Errorf("checked %d times in 20 s, though the store sends all news", n)
		}
		r.st.polls(true)
		r.m.News(store.EveryWait)
		if n := rate(); n < 19 || n > 30 {
			t.Errorf("checked %d times in 20 s, want every second", n)
		}
		r.st.polls(false)
		r.m.News(store.EveryWait)
		if n := rate(); n > 6 {
			t.Errorf("checked %d times in 20 s, after the store sends all news again", n)
		}
	})
}

// A check that has to wait does not delay other checks.
func TestBlockedCheck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		other := r.another()
		g := other.lockTTL("k", time.Hour)
		other.lockTTL("blocked", 2*time.Second)
		s := r.eitherSession()
		unblock := r.st.blockChecks("blocked")
		blocked := r.wait(s, "blocked", types.WaitForever)
		time.Sleep(2*time.Second + 2*attempt.CheckSlack)
		a := r.wait(s, "k", types.WaitForever) // its first check is due much later
		r.handOver(other, "k", g.Token)
		before := time.Now()
		r.hint("k")
		if a.granted(t); time.Since(before) != 0 {
			t.Errorf("granted %s after the hint", time.Since(before))
		}
		unblock()
		time.Sleep(2 * time.Second)
		if blocked.granted(t); blocked.after > 5*time.Second {
			t.Errorf("granted after %s", blocked.after)
		}
	})
}

// With polling, a check that has to wait does not delay the polls of other waits.
func TestBlockedPoll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, polling)
		other := r.another()
		g := other.lockTTL("k", time.Hour)
		other.lockTTL("blocked", 2*time.Second)
		s := r.eitherSession()
		a := r.wait(s, "k", types.WaitForever)
		blocked := r.wait(s, "blocked", types.WaitForever)
		unblock := r.st.blockChecks("blocked")
		time.Sleep(20 * time.Second)
		r.handOver(other, "k", g.Token)
		before := time.Now()
		if a.granted(t); time.Since(before) > 1100*time.Millisecond {
			t.Errorf("granted after %s", time.Since(before))
		}
		unblock()
		time.Sleep(10 * time.Second)
		blocked.granted(t)
	})
}

// Only a few checks that have to wait are in flight at a time, and all waits go on.
func TestManyBlockedChecks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		other := r.another()
		s := r.eitherSession()
		keys := make([]string, 10)
		for i := range keys {
			keys[i] = fmt.Sprint(i)
		}
		unblock := r.st.blockChecks(keys...)
		var asked []*answer
		for _, k := range keys {
			other.lockTTL(k, time.Second)
			asked = append(asked, r.wait(s, k, types.WaitForever))
			time.Sleep(1100 * time.Millisecond) // more than a second, so that each is checked alone
		}
		r.st.mu.Lock()
		most := r.st.checkingMost
		r.st.mu.Unlock()
		if most != attempt.MaxChecks {
			t.Errorf("%d checks at a time", most)
		}
		unblock()
		time.Sleep(5 * time.Second)
		for i, a := range asked {
			if !a.isOver() {
				t.Errorf("wait %d still waits", i)
			}
		}
	})
}

// During a storm of hints, checks run one statement at a time, and few statements are needed.
func TestHintStorm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		other := r.another()
		s := r.eitherSession()
		for i := range 50 {
			other.lockTTL(fmt.Sprint(i), time.Hour)
			r.wait(s, fmt.Sprint(i), types.WaitForever)
		}
		r.st.set("Check", fault{before: 5 * time.Millisecond})
		for range 1000 {
			for i := range 50 {
				r.hint(fmt.Sprint(i))
			}
			time.Sleep(time.Millisecond)
		}
		if n := r.st.count("Check"); n > 100 {
			t.Errorf("a second of hints took %d statements", n)
		}
	})
}

// The store listens while a call waits, from before its enqueue until a while after.
// Proves: trap notifications
func TestListen(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		s := r.eitherSession()
		r.lockTTL("k", 24*time.Hour)
		time.Sleep(time.Hour)
		r.listened()
		for round := range 3 {
			var want []bool
			for range round {
				want = append(want, true, false)
			}
			before := r.st.count("Enqueue")
			a, b := r.wait(s, "k", time.Minute), r.wait(s, "k", time.Second)
			r.listened(append(want, true)...)
			if got := r.st.listens[len(want)].enqueues; got != before {
				t.Errorf("listening after %d enqueues, want %d", got, before)
			}
			<-b.done
			<-a.done
			r.listened(append(want, true)...)
			r.wait(s, "k", time.Second)
			r.listened(append(want, true)...)
			time.Sleep(3 * hearing.Linger)
			r.listened(append(want, true, false)...)
		}
	})
}

// A call whose wait ends reports the queue position that it left.
func TestQueuePositionAtTheEnd(t *testing.T) {
	for name, cancelTells := range map[string]bool{"from the cancel": true, "from the enqueue": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				other := r.another()
				s := r.eitherSession()
				other.lockTTL("k", time.Hour)
				r.st.noPlaces("Check")
				if !cancelTells {
					r.st.noPlaces("Check", "Cancel")
				}
				first := r.wait(s, "k", 20*time.Second)
				second := r.wait(s, "k", 40*time.Second)
				<-first.done
				<-second.done
				for i, a := range []*answer{first, second} {
					want := 1
					if i == 1 && !cancelTells {
						want = 2 // as its enqueue returned
					}
					var timeout *types.TimeoutError
					if !errors.As(a.err, &timeout) || timeout.Position != want {
						t.Errorf("got %+v, want position %d", a.err, want)
					}
				}
			})
		})
	}
}
