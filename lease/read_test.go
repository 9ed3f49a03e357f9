package lease

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/holdings"
	"github.com/locksidecar/locksidecar/lease/internal/types"
)

// Reads of locks that this sidecar holds do not call the store.
// Proves: promise 18
func TestOwnLocksAskNothing(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		s, other := r.eitherSession(), r.eitherSession()
		ctx := context.Background()
		g, err := r.m.Acquire(ctx, s, types.Request{Key: "k", Data: []byte(`1`), Traceparent: "tp"})
		r.must(err)
		time.Sleep(time.Second)
		before := r.st.total()
		v, err := r.m.Get(ctx, s, "k", false)
		r.must(err)
		h := v.Holder
		if !v.Mine || v.Token != g.Token || h.Session != s.Name() || h.Instance != "a" || h.HeldFor != time.Second ||
			h.ExpiresIn != 13250*time.Millisecond || string(h.Data) != "1" || h.Traceparent != "tp" {
			t.Errorf("got %+v", v)
		}
		v, err = r.m.Get(ctx, other, "k", false)
		r.must(err)
		if v.Mine {
			t.Errorf("got %+v", v)
		}
		r.must(r.amend(s, g))
		_, err = r.m.List(ctx, s, types.ListRequest{Scope: types.ScopeSession, Limit: 10})
		r.must(err)
		var held *types.HeldError
		if _, err := r.m.Acquire(ctx, other, types.Request{Key: "k"}); !errors.As(err, &held) || !held.Cached {
			t.Errorf("error %v", err)
		}
		if n := r.st.total() - before; n != 0 {
			t.Errorf("%d calls", n)
		}
		if _, err = r.m.Get(ctx, s, "k", true); err != nil || r.st.count("Get") != 1 {
			t.Error("a read with no-cache must call the store")
		}
	})
}

// Only the store knows the calls that wait at other sidecars. An answer without the store is marked
// as cached.
// Proves: promise 18
func TestWaitsElsewhereAreNotKnownHere(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		other := r.another(opt)
		s, far := r.eitherSession(), other.eitherSession()
		r.lock(s, "k")
		a := other.wait(far, "k", types.WaitForever)
		get := func(noCache bool) types.View {
			v, err := r.m.Get(context.Background(), s, "k", noCache)
			r.must(err)
			return v
		}
		if v := get(false); !v.Cached || v.QueueLength != 0 {
			t.Errorf("from memory: %+v", v)
		}
		if v := get(true); v.Cached || v.QueueLength != 1 {
			t.Errorf("from the store: %+v", v)
		}
		p, err := r.m.List(context.Background(), s, types.ListRequest{Scope: types.ScopeSession, Limit: 10})
		r.must(err)
		if len(p.Locks) != 1 || !p.Locks[0].Cached {
			t.Errorf("listed: %+v", p)
		}
		w := r.watch(s, "k")
		if w.view.Cached || w.view.QueueLength != 1 || !w.view.Mine {
			t.Errorf("watched: %+v", w.view)
		}
		w.stop()
		s.End(types.EndDeleted)
		a.granted(t)
		far.End(types.EndDeleted)
		r.nothingLeft()
	})
}

func TestAmend(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		s := r.eitherSession()
		ctx := context.Background()
		g := r.lock(s, "k")
		_, err := r.m.Amend(ctx, s, types.AmendRequest{Key: "k", Token: g.Token, TTL: time.Hour})
		if _, ok := errors.AsType[*types.InvalidError](err); !ok {
			t.Errorf("error %v", err)
		}
		_, err = r.m.Amend(ctx, s, types.AmendRequest{Key: "k", Token: g.Token, SetData: true, Data: []byte("2")})
		r.must(err)
		v, err := r.m.Get(ctx, s, "k", false)
		r.must(err)
		if string(v.Holder.Data) != "2" || string(r.stored("k").Holder.Data) != "2" {
			t.Errorf("got %+v", v)
		}
		// The data is changed even if the caller leaves, and all sidecars see the change.
		proceed := r.st.holdAnswer("Amend")
		left, cancel := context.WithCancel(ctx)
		cancel()
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = r.m.Amend(left, s, types.AmendRequest{Key: "k", Token: g.Token, SetData: true, Data: []byte("3")})
		}()
		synctest.Wait()
		proceed()
		<-done
		synctest.Wait()
		v, err = r.m.Get(ctx, s, "k", false)
		r.must(err)
		if !bytes.Equal(v.Holder.Data, r.stored("k").Holder.Data) {
			t.Errorf("in the sidecar %s, in the store %s", v.Holder.Data, r.stored("k").Holder.Data)
		}
		// If the store reports that the lock is gone, the store is right.
		r.revokeLeases()
		_, err = r.m.Amend(ctx, s, types.AmendRequest{Key: "k", Token: g.Token, SetData: true})
		if lostReason(err) != types.LostStore || len(r.losses()) != 1 {
			t.Errorf("error %v, lost %v", err, r.losses())
		}
	})
}

func TestLists(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		other := r.another(opt)
		s, second := r.eitherSession(), r.eitherSession()
		for _, key := range []string{"b", "a", "c/1", "c/2"} {
			r.lock(s, key)
		}
		r.lock(second, "d")
		other.lock(other.eitherSession(), "e")
		keys := func(s *holdings.Session, req types.ListRequest) (keys string, mine int) {
			p, err := r.m.List(context.Background(), s, req)
			r.must(err)
			for _, l := range p.Locks {
				keys += l.Key + " "
				if l.Mine {
					mine++
				}
			}
			return keys + p.Next, mine
		}
		for _, c := range []struct {
			s    *holdings.Session
			req  types.ListRequest
			want string
			mine int
		}{
			{s, types.ListRequest{Scope: types.ScopeSession, Limit: 10}, "a b c/1 c/2 ", 4},
			{s, types.ListRequest{Scope: types.ScopeSession, Limit: 2}, "a b b", 2},
			{s, types.ListRequest{Scope: types.ScopeSession, Limit: 2, After: "b"}, "c/1 c/2 ", 2},
			{s, types.ListRequest{Scope: types.ScopePod, Limit: 10}, "a b c/1 c/2 d ", 4},
			{s, types.ListRequest{Scope: types.ScopePod, Limit: 4}, "a b c/1 c/2 " + "c/2", 4},
			{nil, types.ListRequest{Scope: types.ScopeAll, Limit: 10, Prefix: "c"}, "c/1 c/2 ", 0},
			{second, types.ListRequest{Scope: types.ScopeAll, Limit: 10, After: "c/2"}, "d e ", 1},
			{nil, types.ListRequest{Scope: types.ScopeSession, Limit: 10}, "", 0},
		} {
			if got, mine := keys(c.s, c.req); got != c.want || mine != c.mine {
				t.Errorf("%+v: got %q, %d of the session", c.req, got, mine)
			}
		}
	})
}

// denied asks once, with the cache, and reports whether the cache answered.
func (r *rig) denied(s *holdings.Session, key string) (cached bool) {
	r.t.Helper()
	_, err := r.m.Acquire(context.Background(), s, types.Request{Key: key})
	var held *types.HeldError
	if !errors.As(err, &held) {
		r.t.Fatalf("error %v", err)
	}
	return held.Cached
}

// Proves: promise 18, trap expirable
func TestHeldAnswersAreCached(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		other := r.another(opt)
		g := other.lockTTL("k", 300*time.Millisecond)
		s := r.eitherSession()
		asked := func() int { return r.st.count("Acquire") }
		if r.denied(s, "k") || !r.denied(s, "k") || asked() != 1 {
			t.Fatal("the second held answer must come from the cache")
		}
		time.Sleep(99 * time.Millisecond)
		_, err := r.m.Acquire(context.Background(), s, types.Request{Key: "k"})
		var held *types.HeldError
		if !errors.As(err, &held) || !held.Cached {
			t.Fatalf("error %v", err)
		}
		if h := held.Lock.Holder; h.HeldFor != 99*time.Millisecond || h.ExpiresIn != 201*time.Millisecond {
			t.Errorf("held by %+v", h)
		}
		time.Sleep(time.Millisecond) // CacheTTL
		if r.denied(s, "k") {
			t.Error("the entry was kept for too long")
		}
		if _, err := r.try(s, "k"); !errors.As(err, &held) || held.Cached {
			t.Error("no-cache answered from the cache")
		}
		time.Sleep(150 * time.Millisecond)
		if r.denied(s, "k") {
			t.Error("the entry was kept for too long")
		}
		time.Sleep(50 * time.Millisecond) // the holder's expiry
		got, err := r.m.Acquire(context.Background(), s, types.Request{Key: "k"})
		if err != nil || got.Token <= g.Token {
			t.Errorf("got %+v, %v", got, err)
		}
	})
}

// Proves: promise 18
func TestNoCacheOfHeldAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, with(func(c *types.Config) { c.CacheTTL = 0 }))
		other := r.another()
		other.lockTTL("k", time.Hour)
		s := r.eitherSession()
		for range 2 {
			if r.denied(s, "k") {
				t.Error("the held answer was cached")
			}
		}
	})
}

// News of a key invalidates an older entry of the held cache.
// Proves: promise 18
func TestHeldAnswersAreDropped(t *testing.T) {
	for name, free := range map[string]func(r, other *rig, s *holdings.Session, g types.Grant){
		"by a release here": func(r, _ *rig, _ *holdings.Session, g types.Grant) {
			r.must(r.tryRelease(nil, "k", g.Token))
		},
		"by news of a grant": func(r, other *rig, s *holdings.Session, g types.Grant) {
			a := r.wait(s, "k", types.WaitForever)
			r.must(other.tryRelease(nil, "k", g.Token))
			r.release(s, a.granted(r.t))
		},
		"by a grant": func(r, other *rig, _ *holdings.Session, g types.Grant) {
			r.must(other.tryRelease(nil, "k", g.Token))
			r.must(other.tryRelease(nil, "k", r.lockTTL("k", time.Hour).Token))
		},
		"by a read": func(r, other *rig, s *holdings.Session, g types.Grant) {
			r.must(other.tryRelease(nil, "k", g.Token))
			_, err := r.m.Get(context.Background(), s, "k", true)
			r.must(err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, opt option) {
				r := newRig(t, opt)
				other := r.another(opt)
				g := other.lockTTL("k", time.Hour)
				s := r.eitherSession()
				r.denied(s, "k")
				free(r, other, s, g)
				if _, err := r.m.Acquire(context.Background(), s, types.Request{Key: "k"}); err != nil {
					t.Errorf("error %v", err)
				}
			})
		})
	}
}

// A late held answer is as old as its call to the store. It is not cached if the key was freed since.
// Proves: promise 18
func TestALateHeldAnswerIsNotKept(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		other := r.another(opt)
		g := other.lockTTL("k", time.Hour)
		s := r.eitherSession()
		proceed := r.st.holdAnswer("Acquire")
		a := r.ask(context.Background(), s, types.Request{Key: "k"})
		time.Sleep(r.m.cfg.CacheTTL)
		r.must(other.tryRelease(nil, "k", g.Token))
		proceed()
		if <-a.done; a.err == nil {
			t.Fatal("granted")
		}
		if _, err := r.m.Acquire(context.Background(), s, types.Request{Key: "k"}); err != nil {
			t.Errorf("error %v", err)
		}
	})
}

// A held answer that was in flight while the key was released is not cached.
func TestAnOldHeldAnswerIsNotKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		other := r.another()
		g := other.lockTTL("k", time.Hour)
		s := r.eitherSession()
		proceed := r.st.holdAnswer("Acquire")
		a := r.ask(context.Background(), s, types.Request{Key: "k"})
		synctest.Wait()
		r.must(r.tryRelease(nil, "k", g.Token))
		proceed()
		<-a.done
		if _, ok := errors.AsType[*types.HeldError](a.err); !ok {
			t.Fatalf("error %v", a.err)
		}
		if _, err := r.m.Acquire(context.Background(), s, types.Request{Key: "k"}); err != nil {
			t.Errorf("error %v", err)
		}
	})
}
