package lease

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// A queue position is back, and gets the key before it is judged: then the grant is what is
// to be given up.
func TestAPlaceThatIsBackAndGetsTheKeyIsGivenUp(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		other := r.another(opt)
		s, o := r.session(), other.session()
		r.lock(s, "mine")
		theirs := other.lock(o, "line")
		orphan := store.Ask{Attempt: store.Attempt{Key: "line", ID: uuid.New()}, Lease: r.lease(), Wait: true}
		_, err := r.st.Store.Acquire(context.Background(), []store.Ask{orphan})
		r.must(err)
		r.st.failover()
		for r.st.count("HeldUnderAfter") == 0 {
			time.Sleep(time.Second)
		}
		synctest.Wait()
		other.release(o, theirs)
		if !r.stored("line").Held {
			t.Fatal("the place is lost before it was judged")
		}
		time.Sleep(time.Minute)
		if r.stored("line").Held {
			t.Error("who is not there has got the key")
		}
		r.isCounted()
	})
}

// A queue position that came back is given up before all locks were looked at: it may get the
// key any time.
func TestAPlaceThatIsBackIsGivenUpFirst(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		other := r.another(opt)
		s, o := r.session(), other.session()
		r.lock(s, "mine")
		for i := range 20 {
			other.lock(o, fmt.Sprintf("line/%02d", i))
		}
		orphan := store.Ask{Attempt: store.Attempt{Key: "line/19", ID: uuid.New()}, Lease: r.lease(), Wait: true}
		_, err := r.st.Store.Acquire(context.Background(), []store.Ask{orphan})
		r.must(err)
		r.st.partKeys = 1
		var parts atomic.Int64
		r.st.set("Cancel", fault{times: 1, then: func() { parts.Store(int64(r.st.count("HeldUnderAfter"))) }})
		r.st.set("Withdraw", fault{times: 1, then: func() { parts.Store(int64(r.st.count("HeldUnderAfter"))) }})
		r.st.failover()
		time.Sleep(2 * time.Minute)
		if n := parts.Load(); n != 1 {
			t.Errorf("given up after %d parts", n)
		}
		r.isCounted()
	})
}

// A grant was handed to who waits here, and no word of it comes for long: it is not given up.
func TestAGrantToWhoWaitsIsNotGivenUp(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		other := r.another(opt)
		s, o := r.session(), other.session()
		r.lock(s, "mine")
		theirs := other.lock(o, "line")
		waiting := r.wait(s, "line", types.WaitForever)
		synctest.Wait()
		r.st.set("Check", fault{refuse: true})
		r.st.mu.Lock()
		r.st.dropNews = true
		r.st.mu.Unlock()
		r.st.failover()
		other.release(o, theirs)
		withdraw := r.st.hold("Withdraw")
		time.Sleep(time.Minute)
		if n := r.st.asked("Withdraw"); n > 0 {
			t.Errorf("%d withdrawals", n)
		}
		r.st.lift("Check")
		got := waiting.granted(t)
		withdraw()
		synctest.Wait()
		if l := r.stored("line"); !l.Held || l.Token != got.Token {
			t.Errorf("told as held, and the store has %+v", l)
		}
		r.must(r.amend(s, got))
	})
}

// Much was released just before the failover, and the disk is slow: the renewals, which have
// their turn between, do not wait for long.
func TestALookForMuchLeavesRoomForRenewals(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		s := r.session()
		const many = 2*askedMax + 1
		for i := range many {
			r.release(s, r.lock(s, fmt.Sprint("k", i)))
		}
		mine := r.lock(s, "mine")
		r.st.set("HeldUnder", fault{after: 100 * time.Millisecond})
		r.st.failover()
		time.Sleep(2 * time.Minute)
		if n, asked := r.st.largest("HeldUnder"), r.st.asked("HeldUnder"); n > askedMax || asked < many {
			t.Errorf("asked for %d keys, %d at a time", asked, n)
		}
		r.st.lift("HeldUnder")
		r.must(r.amend(s, mine))
		r.isCounted()
	})
}

// A lock is being released, and the store does not answer for long: its MinHold keeps the key.
func TestWhatIsBeingReleasedIsNotWithdrawn(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		s := r.session()
		r.lock(s, "mine")
		g := r.ask(context.Background(), s, types.Request{Key: "k", MinHold: 10 * time.Minute}).granted(t)
		r.st.set("Release", fault{refuse: true})
		r.st.failover()
		time.Sleep(r.m.cfg.RenewInterval + time.Second)
		if _, err := r.m.Release(context.Background(), s, types.ReleaseRequest{Key: g.Key, Token: g.Token}); err == nil {
			t.Fatal("released")
		}
		time.Sleep(time.Minute)
		r.st.lift("Release")
		time.Sleep(time.Minute)
		if l := r.stored("k"); !l.Held || r.st.count("Withdraw") > 0 {
			t.Errorf("%d withdrawals, and the store has %+v", r.st.count("Withdraw"), l)
		}
		r.isCounted()
	})
}
