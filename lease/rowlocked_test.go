package lease

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

func wantStuck(t *testing.T, what string, err error) {
	t.Helper()
	if !errors.Is(err, types.ErrRowLocked) || !store.Unavailable(err) || store.OutcomeUnknown(err) {
		t.Errorf("%s: error %v", what, err)
	}
}

// One key's row is locked. Calls for this key fail after the store's timeout, with a known outcome
// and without effect. Calls for other keys do not wait.
// Proves: trap locked row
func TestLockedRow(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		s, ctx := r.explicitSession(), context.Background()
		mine, ttl := r.lock(s, "mine"), r.lockTTL("ttl", time.Hour)
		r.st.lockRows("free", "mine", "ttl")
		limit := r.m.cfg.StoreTimeout + time.Second
		if r.st.Traits().Inline {
			limit = 0 // an inline store never blocks, so the call is not repeated
		}

		asked := map[string]*answer{
			"acquire":          r.ask(ctx, s, types.Request{Key: "free"}),
			"acquire and wait": r.ask(ctx, s, types.Request{Key: "free", Wait: time.Hour}),
			"enqueue":          r.ask(ctx, s, types.Request{Key: "mine", Wait: time.Hour}),
			"acquire ttl":      r.ask(ctx, nil, types.Request{Key: "free", Bind: types.BindTTL, TTL: time.Hour}),
		}
		synctest.Wait()
		for i := range 100 {
			if a := r.ask(ctx, s, types.Request{Key: fmt.Sprint(i)}); a.granted(t).Token == 0 || a.after != 0 {
				t.Errorf("another key took %s", a.after)
			}
		}
		for what, a := range asked {
			<-a.done
			wantStuck(t, what, a.err)
			if a.after > limit {
				t.Errorf("%s took %s", what, a.after)
			}
		}
		_, err := r.m.Amend(ctx, nil, types.AmendRequest{Key: "ttl", Token: ttl.Token, TTL: time.Minute})
		wantStuck(t, "amend", err)
		_, err = r.m.Amend(ctx, s, types.AmendRequest{Key: "mine", Token: mine.Token, SetData: true, Data: []byte("1")})
		wantStuck(t, "set data", err)
		if len(r.losses()) != 0 {
			t.Errorf("lost %v", r.losses())
		}
		_, err = r.m.Release(ctx, nil, types.ReleaseRequest{Key: "ttl", Token: ttl.Token})
		wantStuck(t, "release ttl", err)
		if r.st.count("Withdraw") != 0 {
			t.Error("withdrawn although the outcome is known")
		}

		// A session's release is retried until it is done.
		_, err = r.m.Release(ctx, s, types.ReleaseRequest{Key: "mine", Token: mine.Token})
		wantStuck(t, "release", err)
		time.Sleep(time.Minute)
		r.mustBe(mine)
		r.st.lockRows()
		time.Sleep(time.Second)
		if r.stored("mine").Held {
			t.Error("not released after the row was unlocked")
		}
		r.release(nil, ttl)
		s.End(types.EndDropped)
		r.nothingLeft()
	})
}

// A row that is locked for a moment delays the calls only for this moment.
func TestRowLockedForAMoment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		s, ctx := r.explicitSession(), context.Background()
		mine, ttl := r.lock(s, "mine"), r.lockTTL("ttl", time.Hour)
		waits := r.wait(s, "ttl", time.Second/2)
		r.st.lockRows("free", "mine", "ttl")
		var errs [3]error
		var wg sync.WaitGroup
		for i, f := range []func() error{
			func() error { _, err := r.m.Acquire(ctx, s, types.Request{Key: "free"}); return err },
			func() error { return r.amend(nil, ttl) },
			func() error {
				_, err := r.m.Release(ctx, s, types.ReleaseRequest{Key: "mine", Token: mine.Token})
				return err
			},
		} {
			wg.Go(func() { errs[i] = f() })
		}
		enqueues := r.ask(ctx, s, types.Request{Key: "mine", Wait: time.Hour})
		time.Sleep(2 * time.Second)
		r.st.lockRows()
		began := time.Now()
		wg.Wait()
		var timeout *types.TimeoutError
		if <-waits.done; !errors.As(waits.err, &timeout) {
			t.Errorf("cancel: error %v", waits.err)
		}
		enqueues.granted(t)
		for i, err := range errs {
			if err != nil {
				t.Errorf("call %d: error %v", i, err)
			}
		}
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("it took %s", took)
		}
		if n := r.st.count("Withdraw"); n != 0 {
			t.Errorf("%d withdrawals", n)
		}
	})
}

// A cancel of a locked row ends the call in time, and the waiter is withdrawn later.
func TestCancelOfALockedRow(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		other := r.another(opt)
		o, s := other.eitherSession(), r.eitherSession()
		g := other.lock(o, "k")
		a := r.wait(s, "k", 10*time.Second)
		r.st.lockRows("k")
		<-a.done
		wantStuck(t, "cancel", a.err)
		if a.after > 10*time.Second+r.m.cfg.StoreTimeout+time.Second {
			t.Errorf("it took %s", a.after)
		}
		time.Sleep(3 * time.Second)
		if n := r.stored("k").QueueLength; n != 1 {
			t.Errorf("%d waiting", n)
		}
		r.st.lockRows()
		time.Sleep(r.m.cfg.StoreTimeout)
		if n := r.stored("k").QueueLength; n != 0 {
			t.Errorf("%d still waiting", n)
		}
		other.release(o, g)
		time.Sleep(time.Minute)
		r.nothingLeft()
	})
}

// A call must be queued again, and the row is locked for a while. The call continues.
func TestRowLockedWhileQueuedAgain(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		other := r.another(opt)
		o, s := other.eitherSession(), r.eitherSession()
		g := other.lock(o, "k")
		a := r.wait(s, "k", types.WaitForever)
		r.revokeLeases()
		r.st.lockRows("k")
		time.Sleep(time.Minute)
		if a.isOver() {
			t.Fatalf("error %v", a.err)
		}
		r.st.lockRows()
		time.Sleep(10 * time.Second)
		other.release(o, g)
		r.release(s, a.granted(t))
		r.nothingLeft()
	})
}
