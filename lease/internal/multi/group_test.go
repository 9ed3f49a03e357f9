package multi

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/lease/internal/roomtest"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// TestKeysAreGotInTheOrderOfTheirBytes: several keys are asked for together, as many as one question may have, or one by one if a question
// costs no round trip. The answer has them in the order of the call.
// Proves: promise 14, trap deadlock
func TestKeysAreGotInTheOrderOfTheirBytes(t *testing.T) {
	bubble(t, func(t *testing.T, inline bool) {
		r := newRig(t, inline, func(c *types.Config) { c.BatchMax = 3 })
		a := r.ask(context.Background(), types.Request{}, "ä b B a k/2 k/10")
		if got := r.keys(a); got != "ä b B a k/2 k/10" {
			t.Errorf("got %q", got)
		}
		want := "B a b, k/10 k/2 ä"
		if inline {
			want = "B, a, b, k/10, k/2, ä"
		}
		if got := r.st.questions(); got != want {
			t.Errorf("asked for %q, want %q", got, want)
		}
		r.nothingLeft()
	})
}

// TestOnlyKeysBeforeTheHeldOneAreKept: while a group waits for a key, it holds those before it and none after it, in the order of their
// bytes. When it has got the key, it asks for the later ones again.
// Proves: promise 14, trap deadlock
func TestOnlyKeysBeforeTheHeldOneAreKept(t *testing.T) {
	bubble(t, func(t *testing.T, inline bool) {
		r := newRig(t, inline)
		release := r.st.HoldElsewhere(t, "b")
		a := r.ask(context.Background(), types.Request{Wait: types.WaitForever}, "d c b a")
		if !r.stored("a").Held || r.s.Held() != 0 {
			t.Errorf("the store has %+v, the app sees %d", r.stored("a"), r.s.Held())
		}
		r.isFree("c d")
		release()
		if got := r.keys(a); got != "d c b a" || r.s.Held() != 4 {
			t.Errorf("got %q, the app sees %d", got, r.s.Held())
		}
		want := "a b c d, c d"
		if inline {
			want = "a, b, c, d"
		}
		if got := r.st.questions(); got != want {
			t.Errorf("asked for %q, want %q", got, want)
		}
		r.nothingLeft()
	})
}

// TestARefusalHandsBackAllKeys: the group ends without one of its keys, for each reason. None of the others stays held.
// Proves: promise 14
func TestARefusalHandsBackAllKeys(t *testing.T) {
	for name, c := range map[string]struct {
		wait time.Duration
		is   func(error) bool
	}{
		"held": {0, func(err error) bool {
			held, ok := errors.AsType[*types.HeldError](err)
			return ok && held.Lock.Key == "b"
		}},
		"time is up": {time.Second, func(err error) bool {
			late, ok := errors.AsType[*types.TimeoutError](err)
			return ok && late.Lock.Key == "b" && late.Position == 1
		}},
		"the caller leaves": {types.WaitForever, func(err error) bool { return errors.Is(err, types.ErrCallerLeft) }},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, inline bool) {
				r := newRig(t, inline)
				release := r.st.HoldElsewhere(t, "b")
				ctx, leave := context.WithCancel(context.Background())
				defer leave()
				a := r.ask(ctx, types.Request{Wait: c.wait}, "a b c")
				time.Sleep(2 * time.Second)
				leave()
				if <-a.done; !c.is(a.err) {
					t.Errorf("error %v", a.err)
				}
				r.isFree("a c")
				release()
				r.nothingLeft()
			})
		})
	}
}

// TestACallThatLeavesDuringItsQuestion: it keeps none of the keys that it asked for together.
// Proves: promise 14, promise 7
func TestACallThatLeavesDuringItsQuestion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, false)
		r.st.gate = make(chan struct{})
		ctx, leave := context.WithCancel(context.Background())
		a := r.ask(ctx, types.Request{}, "a b c")
		leave()
		if <-a.done; !errors.Is(a.err, types.ErrCallerLeft) {
			t.Errorf("error %v", a.err)
		}
		close(r.st.gate)
		r.isFree("a b c")
		if got := r.st.questions(); got != "a b c" {
			t.Errorf("asked for %q", got)
		}
		r.nothingLeft()
	})
}

// TestQuestionsAtATime: the questions about several keys are limited, because they have no lane. A group whose wait is over before its turn comes asks
// nevertheless, once.
// Proves: trap brief wait
func TestQuestionsAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, false, func(c *types.Config) { c.MaxLocksPerSession = 100 })
		r.keys(r.ask(context.Background(), types.Request{}, "opens the lease"))
		r.st.gate = make(chan struct{})
		var asked []*answer
		for i := range maxAsks + 2 {
			asked = append(asked, r.ask(context.Background(), types.Request{Wait: time.Minute}, fmt.Sprintf("%da %db", i, i)))
		}
		brief := r.ask(context.Background(), types.Request{Wait: time.Millisecond}, "brief/a brief/b")
		time.Sleep(roomtest.StoreTimeout / 2)
		if r.st.most != maxAsks {
			t.Errorf("%d questions at a time", r.st.most)
		}
		close(r.st.gate)
		for _, a := range append(asked, brief) {
			r.keys(a)
		}
		if r.st.most != maxAsks {
			t.Errorf("%d questions at a time", r.st.most)
		}
		r.nothingLeft()
	})
}

// TestAGroupWhoseTurnDoesNotCome: it gets nothing, because of the store, within the store's time after its wait.
// Proves: promise 9, trap brief wait
func TestAGroupWhoseTurnDoesNotCome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, false, func(c *types.Config) { c.MaxLocksPerSession = 100 })
		r.keys(r.ask(context.Background(), types.Request{}, "opens the lease"))
		r.st.gate = make(chan struct{})
		for i := range maxAsks {
			r.ask(context.Background(), types.Request{Wait: time.Minute}, fmt.Sprintf("%da %db", i, i))
		}
		began := time.Now()
		late := r.ask(context.Background(), types.Request{Wait: time.Millisecond}, "late/a late/b")
		<-late.done
		if took := time.Since(began); !store.Unavailable(late.err) || took > time.Millisecond+types.Patience(roomtest.StoreTimeout) {
			t.Errorf("error %v after %s", late.err, took)
		}
		close(r.st.gate)
		r.isFree("late/a late/b")
		r.nothingLeft()
	})
}

// TestGroupsAndALockedRow: groups with locked rows do not use up the questions that may be asked at a time. Other groups are not delayed.
func TestGroupsAndALockedRow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, false)
		ctx, cancel := context.WithCancel(context.Background())
		var stuck []*answer
		var releases []func()
		rows := ""
		for i := range maxAsks {
			releases = append(releases, r.st.HoldElsewhere(t, fmt.Sprint(i, "a")))
			rows += fmt.Sprint(" ", i, "b")
		}
		for i := range maxAsks {
			// The free keys behind the held one are granted. Their hand-back fails.
			r.st.lockRows("")
			r.st.then = func() { r.st.lockRows(rows) }
			req := types.Request{Bind: types.BindTTL, TTL: time.Hour, Wait: types.WaitForever, RequestID: uuid.New()}
			stuck = append(stuck, r.ask(ctx, req, fmt.Sprintf("%da %db %dc", i, i, i)))
		}
		for _, release := range releases {
			release()
		}
		time.Sleep(20 * time.Second)
		r.ask(context.Background(), types.Request{}, "x y")
		if !r.stored("x").Held {
			t.Error("a group waits for the groups with locked rows")
		}
		r.st.lockRows("")
		cancel()
		for _, a := range stuck {
			<-a.done
		}
	})
}

// complete gets the keys a and b of a group, which does not deliver them yet.
func (r *rig) complete(bind types.Bind) (g *group, done func()) {
	r.t.Helper()
	g = r.gs.newGroup(context.Background(), r.s, []string{"a", "b"}, &types.Request{TTL: roomtest.LeaseTTL, Bind: bind})
	done, err := g.admit()
	r.must(err)
	for g.missing() {
		r.must(g.advance())
	}
	return g, done
}

// TestAllOrNone: a part is lost at the moment in which the group is complete. Then the group delivers no part, and gets the lost one again.
// Proves: promise 14
func TestAllOrNone(t *testing.T) {
	bubble(t, func(t *testing.T, inline bool) {
		r := newRig(t, inline)
		g, done := r.complete(types.BindSession)
		r.aq.Holdings().Get("b").LoseAndRelease(types.LostForced)
		if g.complete() || r.s.Held() != 0 || r.s.Find("a", r.stored("a").Token) != nil {
			t.Error("the group was published in part")
		}
		synctest.Wait() // the release is done
		r.must(g.acquire())
		if r.s.Held() != 2 {
			t.Errorf("%d held", r.s.Held())
		}
		done()
		r.nothingLeft()
	})
}

// TestAPartThatIsOver: a bind:ttl part has no time left at the moment in which the group is complete. It is not delivered.
// Proves: promise 12, promise 14
func TestAPartThatIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, false) // one question, so no part is extended before it is delivered
		g, done := r.complete(types.BindTTL)
		defer done()
		r.Clock.Stop(roomtest.LeaseTTL)
		if g.complete() {
			t.Errorf("delivered with %s and %s left", g.calls[0].Admission.ExpiresIn, g.calls[1].Admission.ExpiresIn)
		}
	})
}

// TestALossAtTheReveal: a part is lost while the group delivers. Whether the lock is still undelivered is read when it can no longer change.
// The race detector checks this.
func TestALossAtTheReveal(t *testing.T) {
	bubble(t, func(t *testing.T, inline bool) {
		r := newRig(t, inline)
		g, done := r.complete(types.BindSession)
		h, over := r.aq.Holdings().Get("b"), make(chan struct{})
		go func() {
			defer close(over)
			h.LoseAndRelease(types.LostMaxHold)
		}()
		g.complete()
		<-over
		done()
	})
}

// TestPartsLastWhileTheGroupWaits: bind:ttl parts are extended. The answer promises the full TTL for all, less the margin.
func TestPartsLastWhileTheGroupWaits(t *testing.T) {
	bubble(t, func(t *testing.T, inline bool) {
		r := newRig(t, inline)
		b, d := r.st.HoldElsewhere(t, "b"), r.st.HoldElsewhere(t, "d")
		a := r.ask(context.Background(), types.Request{Wait: types.WaitForever, Bind: types.BindTTL, TTL: 3 * time.Second}, "a b c d")
		part := r.stored("a")
		time.Sleep(10 * time.Second)
		b()
		time.Sleep(10*time.Second + 500*time.Millisecond)
		d()
		if got := r.keys(a); got != "a b c d" || a.grants[0].Token != part.Token {
			t.Errorf("got %q; the first part was lost meanwhile: %v", got, a.grants[0].Token != part.Token)
		}
		for _, g := range a.grants {
			if left := r.stored(g.Key).Holder.ExpiresIn; g.ExpiresIn != 2850*time.Millisecond || left != 3*time.Second || g.Session != "" {
				t.Errorf("the store has it for %s: %+v", left, g)
			}
		}
		time.Sleep(3 * time.Second) // the app has them, so nothing extends them
		r.isFree("a b c d")
	})
}

// TestALostPartIsGotAgain: somebody releases a bind:ttl part, and another gets its key, while the group waits for a later one. The group
// does not answer without this key, and holds no later key while it waits for it.
// Proves: promise 14
func TestALostPartIsGotAgain(t *testing.T) {
	bubble(t, func(t *testing.T, inline bool) {
		r := newRig(t, inline)
		b := r.st.HoldElsewhere(t, "b")
		a := r.ask(context.Background(), types.Request{Wait: types.WaitForever, Bind: types.BindTTL, TTL: 3 * time.Second}, "a b")
		_, err := r.st.Release(context.Background(), []store.Claim{{Key: "a", Token: r.stored("a").Token}})
		r.must(err)
		taken := r.st.HoldElsewhere(t, "a")
		b()
		synctest.Wait()
		select {
		case <-a.done:
			t.Fatalf("granted without one of its keys: %+v, %v", a.grants, a.err)
		default:
		}
		r.isFree("b")
		taken()
		if got := r.keys(a); got != "a b" {
			t.Errorf("got %q", got)
		}
	})
}
