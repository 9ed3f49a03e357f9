package lease

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// briefly are calls with a wait that is over before their sidecar can ask.
var briefly = map[string]types.Request{
	"a lock":          {Key: "k"},
	"a share":         {Key: "k", Shared: true, Limit: 3},
	"a bind:ttl lock": {Key: "k", Bind: types.BindTTL, TTL: time.Minute},
}

const brief = time.Millisecond

// A call asks once, however short its wait is: its lease is still being opened when its wait is over, and the key is free. A loop of such calls would
// otherwise be worse than calls that do not wait.
// Proves: trap brief wait
func TestABriefWaitAsksOnce(t *testing.T) {
	for name, req := range briefly {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, opt option) {
				r := newRig(t, opt)
				s := r.eitherSession()
				proceed := r.st.hold("OpenLeases")
				req.Wait = brief
				a := r.ask(context.Background(), s, req)
				time.Sleep(time.Second) // of the bubble
				if a.isOver() {
					t.Fatalf("it is over before it has asked: %v", a.err)
				}
				proceed()
				if g := a.granted(t); g.Waited != time.Second {
					t.Errorf("got %+v", g)
				}
				r.release(s, a.g)
				r.nothingLeft()
			})
		})
	}
}

// The same holds for a call for several keys.
// Proves: trap brief wait
func TestABriefWaitForSeveralKeysAsksOnce(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		s := r.eitherSession()
		proceed := r.st.hold("OpenLeases")
		a := r.askAll(context.Background(), s, types.Request{Wait: brief}, "a", "b")
		time.Sleep(time.Second)
		if a.isOver() {
			t.Fatalf("it is over before it has asked: %v", a.err)
		}
		proceed()
		for _, g := range a.granted(t, "a", "b") {
			r.release(s, g)
		}
		r.nothingLeft()
	})
}

// If the key is held, the call that has asked once is over: it names the holder, and leaves the queue.
// Proves: trap brief wait
func TestABriefWaitForAHeldKeyEndsWithItsAnswer(t *testing.T) {
	for name, req := range briefly {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, opt option) {
				r := newRig(t, opt)
				other := r.another(opt)
				g := other.lock(other.eitherSession(), "k")
				proceed := r.st.hold("OpenLeases")
				req.Wait = brief
				a := r.ask(context.Background(), r.eitherSession(), req)
				time.Sleep(time.Second)
				proceed()
				<-a.done
				e, ok := errors.AsType[*TimeoutError](a.err)
				if !ok || e.Lock.Token != g.Token || e.Position != 1 || a.after != time.Second {
					t.Errorf("%v after %s, want a wait in vain for %d", a.err, a.after, g.Token)
				}
				r.onlyOthersLeft(1)
			})
		})
	}
}

// A call that cannot ask because the store hangs has failed because of the store, within the store's time after its wait.
// Proves: promise 9, trap brief wait
func TestABriefWaitWhileTheStoreHangs(t *testing.T) {
	for name, req := range briefly {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				defer r.st.hold("OpenLeases")()
				req.Wait = brief
				a := r.ask(context.Background(), r.eitherSession(), req)
				if <-a.done; !store.Unavailable(a.err) || a.after > brief+types.Patience(r.m.cfg.StoreTimeout) {
					t.Errorf("error %v after %s", a.err, a.after)
				}
			})
		})
	}
}

// The store answers only that the lease is gone, and the wait is over by then. So the call asks again under another lease, as a call that does not wait does.
// Proves: trap brief wait
func TestABriefWaitWhoseLeaseIsLostAsksAgain(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		s := r.eitherSession()
		r.release(s, r.lock(s, "opens the lease"))
		r.noKept()
		r.st.set("Acquire", fault{times: 1, before: time.Second, first: r.revokeLeases})
		a := r.wait(s, "k", brief)
		r.release(s, a.granted(t))
		r.nothingLeft()
	})
}

// A call that was told that it must wait ends with its wait. It does not wait longer while its lease, which was lost, is opened again.
// Proves: trap brief wait
func TestAWaitThatWasToldEndsInTime(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		g := r.another(opt).lockTTL("k", time.Hour)
		a := r.wait(r.eitherSession(), "k", 20*time.Second)
		defer r.st.hold("OpenLeases")()
		r.revokeLeases()
		if e := a.inVain(t, 20*time.Second); e.Lock.Token != g.Token {
			t.Errorf("named %+v", e.Lock)
		}
	})
}
