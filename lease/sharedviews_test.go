package lease

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

func tokensOf(lock *store.Lock) (tokens []int64) {
	for _, h := range lock.Holders {
		tokens = append(tokens, h.Token)
	}
	return tokens
}

// A read returns all holders. The session's own share is shown with its token.
func TestReadOfSharedHolders(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		other := r.another(opt)
		ctx, s, o := context.Background(), r.eitherSession(), other.eitherSession()
		first, mine, more := other.share(o, "k", 9), r.share(s, "k", 9), r.share(s, "k", 9)
		solo := r.lock(s, "solo")
		for _, noCache := range []bool{false, true} {
			v, err := r.m.Get(ctx, s, "k", noCache)
			r.must(err)
			if !v.Mine || v.Token != mine.Token || !v.Shared || v.Limit != 9 || v.HoldersCount != 3 || v.Cached ||
				!slices.Equal(tokensOf(&v.Lock), []int64{first.Token, mine.Token, more.Token}) || v.Holder.Pod != "pod-b" {
				t.Errorf("got %+v", v)
			}
		}
		if v, err := r.m.Get(ctx, nil, "k", false); err != nil || v.Mine {
			t.Errorf("got %+v, %v", v, err)
		}
		for _, scope := range []types.Scope{types.ScopeSession, types.ScopePod, types.ScopeAll} {
			page, err := r.m.List(ctx, s, types.ListRequest{Scope: scope, Limit: 10})
			r.must(err)
			if len(page.Locks) != 2 || page.Locks[0].Key != "k" || page.Locks[0].HoldersCount != 3 || !page.Locks[0].Mine || !page.Locks[1].Mine {
				t.Errorf("scope %d: %+v", scope, page.Locks)
			}
		}
		page, err := r.m.List(ctx, s, types.ListRequest{Scope: types.ScopeSession, Limit: 1})
		if err != nil || len(page.Locks) != 1 || page.Next != "k" {
			t.Errorf("got %+v, %v", page, err)
		}
		if err := r.tryRelease(o, "k", mine.Token); !isNotHolder(err, types.ReasonOtherSession) {
			t.Errorf("another session: error %v", err)
		}
		other.release(o, first)
		for _, g := range []types.Grant{mine, more, solo} {
			r.release(s, g)
		}
		if err := r.tryRelease(s, "k", mine.Token); !isNotHolder(err, types.ReasonReleased) {
			t.Errorf("released before: error %v", err)
		}
		r.nothingLeft()
		other.nothingLeft()
	})
}

func isNotHolder(err error, reason types.NotHolderReason) bool {
	refused, ok := errors.AsType[*types.NotHolderError](err)
	return ok && refused.Reason == reason
}

// A stop without a token is for all holders, and a stop with a token is for one.
func TestStopSharedHolders(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		other := r.another(opt)
		ctx, s := context.Background(), r.eitherSession()
		one, two := r.share(s, "k", 0), r.share(s, "k", 0)
		r.must(other.m.AskToStop(ctx, "k", two.Token, new("you")))
		time.Sleep(time.Second)
		if told := r.stops(); len(told) != 1 || told[0].Token != two.Token {
			t.Fatalf("got %+v", told)
		}
		if lock := r.stored("k"); lock.Holders[0].Stopping != nil || lock.Holders[1].Stopping == nil {
			t.Errorf("got %+v", lock.Holders)
		}
		r.must(other.m.AskToStop(ctx, "k", 0, new("all")))
		time.Sleep(time.Second)
		if told := r.stops(); len(told) != 3 || told[1].Token+told[2].Token != one.Token+two.Token {
			t.Errorf("got %+v", told)
		}
		err := other.m.AskToStop(ctx, "k", two.Token+1000, nil)
		if free, ok := errors.AsType[*types.NotHeldError](err); !ok || free.Token != two.Token+1000 {
			t.Errorf("a free key: error %v", err)
		}
		g := r.lock(s, "alone")
		if err := other.m.AskToStop(ctx, "alone", g.Token+1000, nil); !types.Is[*types.NotHeldError](err) {
			t.Errorf("another token: error %v", err)
		}
		for _, g := range []types.Grant{one, two, g} {
			r.release(s, g)
		}
		r.nothingLeft()
	})
}

// A break without a token is for all holders, and a break with a token is for one.
func TestBreakShares(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		other := r.another(opt)
		ctx, s, o := context.Background(), r.eitherSession(), other.eitherSession()
		one, two, three := r.share(s, "k", 0), r.share(s, "k", 0), other.share(o, "k", 0)
		ttl := r.get(nil, types.Request{Key: "k", Shared: true, Bind: types.BindTTL, TTL: time.Hour})
		if err := other.m.Break(ctx, r.stored("k"), ttl.Token+1000); !types.Is[*types.NotHeldError](err) {
			t.Errorf("an unknown token: error %v", err)
		}
		r.must(other.m.Break(ctx, r.stored("k"), two.Token))
		if lost := r.losses(); len(lost) != 1 || lost[0] != (types.Lost{Key: "k", Token: two.Token, Reason: types.LostForced}) {
			t.Errorf("lost %+v", lost)
		}
		r.must(r.m.Break(ctx, r.stored("k"), ttl.Token))
		seen := r.stored("k")
		if got := tokensOf(&seen); !slices.Equal(got, []int64{one.Token, three.Token}) {
			t.Errorf("%v are still held", got)
		}
		later := r.share(s, "k", 0)
		r.must(r.m.Break(ctx, r.stored("k"), 0))
		if lock := r.stored("k"); lock.Held {
			t.Errorf("got %+v", lock)
		}
		if n, m := len(r.losses()), len(other.losses()); n != 3 || m != 1 {
			t.Errorf("%d and %d losses", n, m)
		}
		if err := r.tryRelease(s, "k", later.Token); !types.Is[*types.LostError](err) {
			t.Errorf("error %v", err)
		}
		r.nothingLeft()
		other.nothingLeft()
	})
}

// Waiting calls are listed in the order of keys and queues, with mode and limit.
func TestWaitersAreListed(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		other := r.another(opt)
		ctx, s, o := context.Background(), r.eitherSession(), other.eitherSession()
		a, b := r.lock(s, "a"), r.lock(s, "b")
		w := r.explicitSession()
		calls := []*answer{r.wait(w, "b", types.WaitForever), other.waitShare(o, "a", 3), r.waitShare(w, "a", 3)}
		time.Sleep(time.Second)
		page, err := r.m.Waiters(ctx, types.WaitersRequest{Limit: 2})
		r.must(err)
		if len(page.Waiting) != 2 || page.Next.Key != "a" {
			t.Fatalf("got %+v", page)
		}
		if got := page.Waiting[0]; got.Key != "a" || got.Position != 1 || got.Pod != "pod-b" || !got.Shared || got.Limit != 3 || got.Session != o.Name() || got.WaitingFor < time.Second {
			t.Errorf("got %+v", got)
		}
		next, err := r.m.Waiters(ctx, types.WaitersRequest{Limit: 2, After: page.Next})
		if err != nil || len(next.Waiting) != 1 || next.Waiting[0].Key != "b" || next.Waiting[0].Shared || next.Next != (store.QueuePlace{}) {
			t.Errorf("got %+v, %v", next, err)
		}
		ofKey, err := r.m.Waiters(ctx, types.WaitersRequest{Key: "a", Limit: 10})
		if err != nil || len(ofKey.Waiting) != 2 || ofKey.Waiting[1].Position != 2 {
			t.Errorf("got %+v, %v", ofKey, err)
		}
		r.release(s, a)
		r.release(s, b)
		for i, c := range calls {
			from := r
			if i == 1 {
				from = other
			}
			from.release(c.s, c.granted(t))
		}
		r.nothingLeft()
		other.nothingLeft()
	})
}

// Watchers are notified of each share by its token.
func TestWatchOfSharedHolders(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		other := r.another(opt)
		s, o := r.eitherSession(), other.eitherSession()
		first := r.share(s, "k", 5)
		w := other.watch(o, "k")
		if v := w.view; !v.Shared || v.HoldersCount != 1 || v.Token != first.Token {
			t.Errorf("got %+v", v)
		}
		second := other.share(o, "k", 5)
		if e := w.want(acquired)[0]; e.Token != second.Token || e.Lock.Token != second.Token || e.Lock.Holder.Pod != "pod-b" || e.Lock.Holders[0].Slot != 1 {
			t.Errorf("got %+v", e)
		}
		r.must(r.m.AskToStop(context.Background(), "k", first.Token, nil))
		if e := w.want(stopping)[0]; e.Token != first.Token {
			t.Errorf("got %+v", e)
		}
		r.release(s, first)
		if e := w.want(released)[0]; e.Token != first.Token {
			t.Errorf("got %+v", e)
		}
		third := r.share(s, "k", 5)
		if e := w.want(acquired)[0]; e.Token != third.Token || e.Lock.Holders[0].Slot != 0 {
			t.Errorf("got %+v", e)
		}
		time.Sleep(time.Minute) // polls do not repeat events
		w.want()
		other.release(o, second)
		r.release(s, third)
		if e := w.want(released, released); e[0].Token != second.Token || e[1].Token != third.Token {
			t.Errorf("got %+v", e)
		}
		g := r.lock(s, "k")
		if e := w.want(acquired)[0]; e.Token != g.Token || e.Lock.Shared {
			t.Errorf("got %+v", e)
		}
		_, err := r.downgrade(s, g)
		r.must(err)
		late := r.share(s, "k", 0)
		if e := w.want(acquired)[0]; e.Token != late.Token {
			t.Errorf("got %+v", e)
		}
		r.release(s, g)
		r.release(s, late)
		if e := w.want(released, released); e[0].Token != g.Token || e[1].Token != late.Token {
			t.Errorf("got %+v", e)
		}
		time.Sleep(time.Minute)
		w.want()
		w.stop()
		time.Sleep(time.Minute)
		r.nothingLeft()
		other.nothingLeft()
	})
}

// Polling without pushes gives the same events.
func TestPolledWatchOfSharedHolders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		other := newRigOn(t, r.space, "b")
		other.st.dropNews = true
		s, o := r.eitherSession(), other.eitherSession()
		w := other.watch(o, "k")
		one, two := r.share(s, "k", 0), r.share(s, "k", 0)
		time.Sleep(time.Minute)
		if e := w.want(acquired, acquired); e[0].Token != one.Token || e[1].Token != two.Token {
			t.Errorf("got %+v", e)
		}
		r.release(s, one)
		three := r.share(s, "k", 0)
		time.Sleep(time.Minute)
		if e := w.want(released, acquired); e[0].Token != one.Token || e[1].Token != three.Token {
			t.Errorf("got %+v", e)
		}
		r.release(s, two)
		r.release(s, three)
		time.Sleep(time.Minute)
		if e := w.want(released, released); e[0].Token != two.Token || e[1].Token != three.Token {
			t.Errorf("got %+v", e)
		}
		w.stop()
		time.Sleep(time.Minute)
		other.nothingLeft()
	})
}

// The span of a wait has links to all shared holders, at most 8.
func TestSpanOfAWaitForSharedHolders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sp := newSpans(t)
		r := sp.on(inline)
		s := r.explicitSession()
		var grants []types.Grant
		for range 10 {
			grants = append(grants, sp.acquire(r, "a", s, types.Request{Key: "k", Shared: true}))
		}
		w := r.eitherSession()
		writer := sp.ask(context.Background(), r, "w", w, types.Request{Key: "k", Wait: time.Minute})
		synctest.Wait()
		for _, g := range grants {
			r.release(s, g)
		}
		r.release(w, writer.granted(t))
		synctest.Wait()
		wait := sp.named("lock.wait")[0]
		holders := 0
		for _, l := range wait.Links {
			if attributeOf(l.Attributes, "lock.link") == "holder" {
				holders++
			}
		}
		if holders != 8 || attributeOf(wait.Attributes, "lock.mode") != "exclusive" {
			t.Errorf("%d holders, %v", holders, wait.Attributes)
		}
		if mode := attributeOf(sp.named("lock.held")[0].Attributes, "lock.mode"); mode != "shared" {
			t.Errorf("held: %s", mode)
		}
	})
}
