package lease

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/attempt"
	"github.com/locksidecar/locksidecar/lease/internal/heartbeat"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// handOver lets the key of a lock go to its waiter, and drops the news of that.
func (r *rig) handOver(other *rig, key string, token int64) {
	r.t.Helper()
	r.st.mu.Lock()
	r.st.dropNews = true
	r.st.mu.Unlock()
	_, err := other.m.Release(context.Background(), nil, types.ReleaseRequest{Key: key, Token: token})
	r.must(err)
	synctest.Wait()
}

// hint brings the news that a key's waiter should look.
func (r *rig) hint(key string) {
	for _, b := range r.m.acquirer.Waiting() {
		if b.Key() == key {
			r.m.News(store.News{Attempt: b.Ref(), Lease: b.Lease().ID()})
		}
	}
}

// The hint to look makes one wait be checked at once.
func TestHint(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		other := r.another(opt)
		g, kept := other.lockTTL("k", time.Hour), other.lockTTL("kept", time.Hour)
		s := r.session()
		a, b := r.wait(s, "k", types.WaitForever), r.wait(s, "kept", types.WaitForever)
		time.Sleep(time.Second)
		r.handOver(other, "k", g.Token)
		if a.isOver() {
			t.Fatal("heard of it")
		}
		before := time.Now()
		r.hint("k")
		if a.granted(t); time.Since(before) != 0 {
			t.Errorf("granted %s after the hint", time.Since(before))
		}
		if b.isOver() {
			t.Error("the other was told, too")
		}
		other.release(nil, kept)
		time.Sleep(10 * time.Second)
		s.End(types.EndDropped)
		r.nothingLeft()
	})
}

// A hint that comes before the attempt is queued, or while it is being checked,
// is not lost.
func TestHintInBetween(t *testing.T) {
	for _, op := range []string{"Enqueue", "Check"} {
		t.Run(op, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				other := r.another()
				g := other.lockTTL("k", time.Hour)
				other.lockTTL("earlier", time.Hour)
				r.wait(r.session(), "earlier", types.WaitForever) // checked before k is
				time.Sleep(time.Second)
				var a *answer
				var proceed func()
				if op == "Enqueue" {
					proceed = r.st.holdAnswer(op)
					a = r.wait(r.session(), "k", types.WaitForever)
				} else {
					a = r.wait(r.session(), "k", types.WaitForever)
					proceed = r.st.holdAnswer(op)
					r.hint("k") // a check that finds nothing new, and is slow to say so
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

// Every wait is checked when something may have been missed, and from then on as
// often as the store's news is worth.
func TestPollingComesAndGoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		other := r.another()
		s := r.session()
		var asked []*answer
		var tokens []int64
		for i := range 100 { // as many as go with one statement
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
			t.Errorf("checked %d times in 20 s, though all news comes by itself", n)
		}
		r.st.polls(true)
		r.m.News(store.EveryWait)
		if n := rate(); n < 19 || n > 30 {
			t.Errorf("checked %d times in 20 s, every second is right", n)
		}
		r.st.polls(false)
		r.m.News(store.EveryWait)
		if n := rate(); n > 6 {
			t.Errorf("checked %d times in 20 s, when all news comes again", n)
		}
	})
}

// A check that has to wait delays no other.
func TestBlockedCheck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		other := r.another()
		g := other.lockTTL("k", time.Hour)
		other.lockTTL("blocked", 2*time.Second)
		s := r.session()
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

// Where waits are polled, one whose check has to wait does not cost the others
// their checks, time and again.
func TestBlockedPoll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, polling)
		other := r.another()
		g := other.lockTTL("k", time.Hour)
		other.lockTTL("blocked", 2*time.Second)
		s := r.session()
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

// However many checks have to wait, a few are under way at a time; and all go on.
func TestManyBlockedChecks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		other := r.another()
		s := r.session()
		keys := make([]string, 10)
		for i := range keys {
			keys[i] = fmt.Sprint(i)
		}
		unblock := r.st.blockChecks(keys...)
		var asked []*answer
		for _, k := range keys {
			other.lockTTL(k, time.Second)
			asked = append(asked, r.wait(s, k, types.WaitForever))
			time.Sleep(1100 * time.Millisecond) // so that each is checked alone
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
				t.Errorf("%d waits on", i)
			}
		}
	})
}

// A storm of hints costs no more than a statement at a time, and not many of them.
func TestHintStorm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		other := r.another()
		s := r.session()
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

// The store listens while somebody waits, from before the first is queued,
// and a while longer.
func TestListen(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		listened := func(want ...bool) {
			t.Helper()
			synctest.Wait()
			r.st.mu.Lock()
			defer r.st.mu.Unlock()
			ok := len(r.st.listens) == len(want)
			for i := range min(len(want), len(r.st.listens)) {
				ok = ok && r.st.listens[i].on == want[i]
			}
			if !ok {
				t.Fatalf("told %+v, want %v", r.st.listens, want)
			}
		}
		s := r.session()
		r.lockTTL("k", 24*time.Hour)
		time.Sleep(time.Hour)
		listened()
		for round := range 3 {
			var want []bool
			for range round {
				want = append(want, true, false)
			}
			before := r.st.count("Enqueue")
			a, b := r.wait(s, "k", time.Minute), r.wait(s, "k", time.Second)
			listened(append(want, true)...)
			if got := r.st.listens[len(want)].enqueues; got != before {
				t.Errorf("told after %d enqueues, want %d", got, before)
			}
			<-b.done
			<-a.done
			listened(append(want, true)...)
			r.wait(s, "k", time.Second)
			listened(append(want, true)...)
			time.Sleep(heartbeat.Linger + 3*r.m.cfg.RenewInterval)
			listened(append(want, true, false)...)
		}
	})
}

// The queue position that a call is told at its end is the one that it gave up.
func TestPlaceInLine(t *testing.T) {
	for name, cancelTells := range map[string]bool{"told by the cancel": true, "last heard": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				other := r.another()
				s := r.session()
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
						want = 2 // as it was told by its enqueue
					}
					var timeout *types.TimeoutError
					if !errors.As(a.err, &timeout) || timeout.Position != want {
						t.Errorf("told %+v, want place %d", a.err, want)
					}
				}
			})
		})
	}
}
