package lease

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/lease/internal/holdings"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// share acquires a share that must be available.
func (r *rig) share(s *holdings.Session, key string, limit int) types.Grant {
	r.t.Helper()
	return r.get(s, types.Request{Key: key, Shared: true, Limit: limit})
}

// waitShare queues a call for a share beside the test.
func (r *rig) waitShare(s *holdings.Session, key string, limit int) *answer {
	a := r.ask(context.Background(), s, types.Request{Key: key, Shared: true, Limit: limit, Wait: types.WaitForever})
	synctest.Wait()
	return a
}

func (r *rig) isDenied(s *holdings.Session, req types.Request) store.Lock {
	r.t.Helper()
	_, err := r.m.Acquire(context.Background(), s, req)
	held, ok := errors.AsType[*types.HeldError](err)
	if !ok {
		r.t.Fatalf("error %v", err)
	}
	return held.Lock
}

func stillWait(t *testing.T, calls ...*answer) {
	t.Helper()
	synctest.Wait()
	for i, a := range calls {
		if a.isOver() {
			t.Fatalf("call %d no longer waits: %+v, %v", i, a.g, a.err)
		}
	}
}

// Several sessions of several sidecars hold a key together. One session may hold several shares.
func TestSharedHolders(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		other := r.another(opt)
		s, o := r.eitherSession(), other.eitherSession()
		grants := []types.Grant{r.share(s, "k", 0), r.share(s, "k", 0), other.share(o, "k", 0)}
		for i, g := range grants {
			if !g.Shared || g.Limit != 0 || i > 0 && g.Token <= grants[i-1].Token {
				t.Errorf("got %+v", g)
			}
		}
		if lock := r.isDenied(r.eitherSession(), types.Request{Key: "k", NoCache: true}); !lock.Shared || lock.HoldersCount != 3 || lock.Token != grants[0].Token {
			t.Errorf("denied with %+v", lock)
		}
		if n := s.Held(); n != 2 {
			t.Errorf("the session holds %d", n)
		}
		r.release(s, grants[0])
		other.release(o, grants[2])
		r.isDenied(r.eitherSession(), types.Request{Key: "k", NoCache: true})
		r.release(s, grants[1])
		r.release(s, r.lock(s, "k"))
		r.nothingLeft()
		other.nothingLeft()
	})
}

// A semaphore has at most as many holders as its limit, and gives each the smallest free slot.
func TestSlots(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		s := r.explicitSession()
		var grants []types.Grant
		for slot := range 3 {
			g := r.share(s, "k", 3)
			if g.Slot != slot || g.Limit != 3 {
				t.Errorf("got %+v, want slot %d", g, slot)
			}
			grants = append(grants, g)
		}
		if lock := r.isDenied(s, types.Request{Key: "k", Shared: true, Limit: 3}); lock.Limit != 3 || lock.HoldersCount != 3 {
			t.Errorf("denied with %+v", lock)
		}
		next := r.waitShare(s, "k", 3)
		stillWait(t, next)
		r.release(s, grants[1])
		if g := next.granted(t); g.Slot != 1 || g.Token <= grants[2].Token {
			t.Errorf("got %+v, want slot 1", g)
		}
		if g, err := r.m.Amend(context.Background(), s, types.AmendRequest{Key: "k", Token: next.g.Token}); err != nil || g.Slot != 1 || g.Limit != 3 || !g.Shared {
			t.Errorf("amended: %+v, %v", g, err)
		}
		s.End(types.EndDropped)
		r.nothingLeft()
	})
}

// All shares of a key have one limit. A call with another limit is refused, whether it waits or
// not.
func TestLimitMismatch(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		s := r.eitherSession()
		g := r.share(s, "k", 3)
		for _, limit := range []int{0, 2} {
			for _, wait := range []time.Duration{0, time.Hour} {
				_, err := r.m.Acquire(context.Background(), r.eitherSession(), types.Request{Key: "k", Shared: true, Limit: limit, Wait: wait})
				if mismatch, ok := errors.AsType[*types.LimitMismatchError](err); !ok || mismatch.Limit != 3 || mismatch.Key != "k" {
					t.Errorf("limit %d, wait %s: error %v", limit, wait, err)
				} else if text := mismatch.Error(); !strings.Contains(text, "name the limit 3, and this call names") || !strings.Contains(text, "name the same") {
					t.Errorf("limit %d: %s", limit, text)
				}
			}
		}
		_, err := r.m.AcquireAll(context.Background(), r.eitherSession(), []string{"a", "k"}, types.Request{Shared: true})
		if mismatch, ok := errors.AsType[*types.LimitMismatchError](err); !ok || mismatch.Key != "k" {
			t.Errorf("several keys: error %v", err)
		}
		synctest.Wait()
		r.isFree("a")
		r.release(s, g)
		r.nothingLeft()
	})
}

// The readers at the head of the queue get the key together. Readers behind a writer wait for the
// writer.
func TestReadersAndWritersTakeTurns(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		other := r.another(opt)
		s, o := r.explicitSession(), other.explicitSession()
		g := r.lock(s, "k")
		readers := []*answer{r.waitShare(s, "k", 0), other.waitShare(o, "k", 0), r.waitShare(s, "k", 0)}
		writer := other.wait(o, "k", types.WaitForever)
		late := r.waitShare(s, "k", 0)
		r.isDenied(r.eitherSession(), types.Request{Key: "k", Shared: true})
		r.release(s, g)
		for i, a := range readers {
			if got := a.granted(t); got.Token <= g.Token || !got.Shared {
				t.Errorf("%d: %+v", i, got)
			}
		}
		stillWait(t, writer, late)
		r.isDenied(r.eitherSession(), types.Request{Key: "k", Shared: true}) // this call would overtake the writer
		r.release(s, readers[0].g)
		other.release(o, readers[1].g)
		stillWait(t, writer, late)
		r.release(s, readers[2].g)
		writer.granted(t)
		stillWait(t, late)
		other.release(o, writer.g)
		r.release(s, late.granted(t))
		r.nothingLeft()
		other.nothingLeft()
	})
}

// A share is free at once when its session ends, and the next call gets the key.
func TestDropFreesShares(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		other := r.another(opt)
		s := r.eitherSession()
		r.share(s, "k", 0)
		r.share(s, "k", 0)
		writer := other.wait(other.eitherSession(), "k", types.WaitForever)
		<-s.End(types.EndDropped)
		other.release(writer.s, writer.granted(t))
		r.nothingLeft()
		other.nothingLeft()
	})
}

// A call that leaves the queue lets in the calls behind it. A grant whose call has left is handed
// back.
func TestCallsForSharesLeave(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		s := r.eitherSession()
		g := r.share(s, "k", 0)
		writer := r.wait(r.eitherSession(), "k", time.Second)
		late := r.waitShare(r.eitherSession(), "k", 0)
		stillWait(t, writer, late)
		<-writer.done
		if _, ok := errors.AsType[*types.TimeoutError](writer.err); !ok {
			t.Errorf("error %v", writer.err)
		}
		r.release(late.s, late.granted(t))

		ctx, cancel := context.WithCancel(context.Background())
		r.st.set("Acquire", fault{times: 1, after: time.Second})
		left := r.ask(ctx, s, types.Request{Key: "k", Shared: true})
		if opt := r.st.Traits(); !opt.Inline {
			synctest.Wait()
		}
		cancel()
		<-left.done
		time.Sleep(time.Minute)
		if left.err != nil && r.stored("k").HoldersCount != 1 {
			t.Errorf("kept: %+v", r.stored("k"))
		}
		if left.err == nil {
			r.release(s, left.g)
		}
		r.release(s, g)
		r.nothingLeft()
	})
}

// Each request id has its own share. A repeat gets this share again, and a release by the id
// releases it.
func TestRepeatedRequestsForShares(t *testing.T) {
	for _, bind := range []types.Bind{types.BindSession, types.BindTTL} {
		bubble(t, func(t *testing.T, opt option) {
			r := newRig(t, opt)
			s := r.explicitSession()
			ask := func(id uuid.UUID) types.Grant {
				t.Helper()
				return r.get(s, types.Request{Key: "k", Shared: true, Limit: 5, RequestID: id, Bind: bind, TTL: 15 * time.Second})
			}
			one, two := uuid.New(), uuid.New()
			a, b := ask(one), ask(two)
			if again := ask(one); again.Token != a.Token || again.Slot != a.Slot || !again.Shared {
				t.Errorf("repeat of %+v: %+v", a, again)
			}
			if again := ask(two); again.Token != b.Token || b.Token == a.Token {
				t.Errorf("repeat of %+v: %+v", b, again)
			}
			claimant := s
			if bind == types.BindTTL {
				claimant = nil
			}
			out, err := r.m.Release(context.Background(), claimant, types.ReleaseRequest{Key: "k", RequestID: one})
			if err != nil || out.Nothing {
				t.Errorf("released by the id: %+v, %v", out, err)
			}
			if again := ask(two); again.Token != b.Token {
				t.Errorf("repeat of %+v: %+v", b, again)
			}
			r.release(claimant, b)
			r.nothingLeft()
		})
	}
}

// Shares with bind:ttl have no session. They are extended and released by key and token.
func TestBindTTLShares(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		other := r.another(opt)
		req := types.Request{Key: "k", Shared: true, Limit: 2, Bind: types.BindTTL, TTL: time.Minute}
		a, b := r.get(nil, req), r.get(nil, req)
		time.Sleep(50 * time.Second)
		g, err := other.m.Amend(context.Background(), nil, types.AmendRequest{Key: "k", Token: b.Token, TTL: time.Hour})
		if err != nil || !g.Shared || g.Slot != 1 || g.Limit != 2 {
			t.Errorf("extended: %+v, %v", g, err)
		}
		time.Sleep(20 * time.Second) // the TTL of a is over
		again := other.get(nil, req)
		if again.Slot != a.Slot {
			t.Errorf("%+v does not have the slot of %+v", again, a)
		}
		r.release(nil, again)
		other.release(nil, b)
		r.nothingLeft()
	})
}

// A session of one connection holds a key and waits for the same key. Only this session could
// release it, so the call is refused at once.
func TestWaitForTheOwnKeyIsRefused(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		s, writers := r.connectionSession(), r.explicitSession()
		refused := func(shared, upgrade bool) {
			t.Helper()
			_, err := r.m.Acquire(context.Background(), s, types.Request{Key: "k", Shared: shared, Wait: time.Minute})
			if own, ok := errors.AsType[*types.InvalidError](err); !ok || own.Of != "field wait_ms" || strings.Contains(own.Text, "share") != upgrade {
				t.Errorf("shared %t: error %v", shared, err)
			}
		}
		g := r.lock(s, "k")
		refused(false, false)
		refused(true, false)
		r.isDenied(s, types.Request{Key: "k"}) // a call that does not wait
		r.release(s, g)
		g = r.share(s, "k", 0)
		refused(false, true)
		second := r.get(s, types.Request{Key: "k", Shared: true, Wait: types.WaitForever}) // a share that is available at once
		writer := r.wait(writers, "k", types.WaitForever)
		refused(true, false)
		r.release(s, second)
		r.release(s, g)
		r.release(writers, writer.granted(t))
		r.nothingLeft()
	})
}

// warnings collects the lines of a log.
type warnings struct {
	mu   sync.Mutex
	text strings.Builder
}

func (w *warnings) Write(line []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.Write(line)
}

func (w *warnings) count(part string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Count(w.text.String(), part)
}

// Another thread of an explicit session may release the key. So the call waits, alone or for several keys, and one line
// is logged.
func TestWaitForTheOwnKeyIsLogged(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		var log warnings
		r := newRig(t, opt, with(func(c *types.Config) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) }))
		s := r.explicitSession()
		g := r.lock(s, "k")
		next := r.wait(s, "k", types.WaitForever)
		several := r.waitAll(s, "j", "k")
		count := func() int {
			synctest.Wait()
			return log.count("its own session holds")
		}
		time.Sleep(9 * time.Second)
		if n := count(); n != 0 {
			t.Errorf("%d lines after 9 s", n)
		}
		time.Sleep(time.Minute)
		if n := count(); n != 2 {
			t.Errorf("%d lines after a minute", n)
		}
		r.release(s, g)
		r.release(s, next.granted(t))
		for _, g := range several.granted(t, "j", "k") {
			r.release(s, g)
		}
		brief := r.lock(s, "k")
		next = r.wait(s, "k", types.WaitForever)
		time.Sleep(time.Second)
		r.release(s, brief)
		r.release(s, next.granted(t))
		time.Sleep(time.Minute)
		if n := count(); n != 2 {
			t.Errorf("%d lines after a short wait", n)
		}
		r.nothingLeft()
	})
}

// The held cache stores that a key is held, but not whether another share is possible.
func TestShareIsNotDeniedByTheCache(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt, with(func(c *types.Config) { c.CacheTTL = time.Hour }))
		other := r.another(opt)
		o, s := other.eitherSession(), r.eitherSession()
		g := other.share(o, "k", 2)
		if lock := r.isDenied(s, types.Request{Key: "k"}); !lock.Shared {
			t.Errorf("denied with %+v", lock)
		}
		if !r.denied(s, "k") {
			t.Error("an exclusive call is not denied by the cache")
		}
		r.release(s, r.share(s, "k", 2))
		other.release(o, g)
		r.nothingLeft()
		other.nothingLeft()
	})
}

// A call for several keys may be for shares.
func TestGroupsShareKeys(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		ctx, s, o := context.Background(), r.eitherSession(), r.eitherSession()
		mine, err := r.m.AcquireAll(ctx, s, []string{"b", "a"}, types.Request{Shared: true})
		r.must(err)
		theirs, err := r.m.AcquireAll(ctx, o, []string{"a", "b"}, types.Request{Shared: true})
		r.must(err)
		if !mine[0].Shared || !theirs[1].Shared || mine[0].Key != "b" {
			t.Errorf("got %+v, %+v", mine, theirs)
		}
		more, err := r.m.AcquireAll(ctx, s, []string{"b", "c"}, types.Request{Shared: true}) // another share of b, as a single call gets
		r.must(err)
		w := r.eitherSession()
		writer := r.waitAll(w, "a", "b", "c")
		for i := range mine {
			r.release(s, mine[i])
			r.release(s, more[i])
			r.release(o, theirs[i])
		}
		for _, g := range writer.granted(t, "a", "b", "c") {
			r.release(w, g)
		}
		r.nothingLeft()
	})
}
