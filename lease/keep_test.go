package lease

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/lease/internal/attempt"
	"github.com/locksidecar/locksidecar/lease/internal/holdings"
	"github.com/locksidecar/locksidecar/lease/internal/keep"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// soon is longer than a recall takes, and much shorter than a key is kept without use.
const soon = 5 * time.Millisecond

// keepers runs a test with two sidecars that keep keys.
func keepers(t *testing.T, test func(t *testing.T, a, b *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		a := newRig(t, keeping)
		test(t, a, a.another(keeping))
	})
}

// keeps lets a sidecar keep a key, and returns the grant whose release it has put off: under the token that the store has.
func (r *rig) keeps(s *holdings.Session, key string) types.Grant {
	r.t.Helper()
	g := r.mayKeep(s, key)
	r.release(s, g)
	if r.isKept(key); !r.m.acquirer.IsKept(key) {
		r.t.Fatal("the key is not kept")
	}
	return g
}

// has returns what the store has of a key. Unlike stored, it changes nothing.
func (r *rig) has(key string) store.Lock {
	r.t.Helper()
	locks, err := r.st.Store.Get(context.Background(), []string{key})
	r.must(err)
	return locks[0]
}

// mayKeep returns a grant that the sidecar will keep.
func (r *rig) mayKeep(s *holdings.Session, key string) types.Grant {
	r.t.Helper()
	r.release(s, r.lock(s, key))
	time.Sleep(time.Millisecond)
	return r.lock(s, key)
}

// takes gets a kept key without the store.
func (r *rig) takes(s *holdings.Session, key string) types.Grant {
	r.t.Helper()
	before := r.st.count("Acquire")
	g := r.lock(s, key)
	if r.st.count("Acquire") != before {
		r.t.Fatal("the store was asked")
	}
	return g
}

// isKept checks that the store has a key for a sidecar that keeps it.
func (r *rig) isKept(key string) {
	r.t.Helper()
	if l := r.has(key); !l.Held || !l.Kept || l.Holder.Instance != r.m.cfg.Instance {
		r.t.Fatalf("not kept: %+v", l)
	}
}

// unlessLocked runs f unless the session's mutex is locked, by the goroutine that reads the clock: f would wait for it.
func (r *rig) unlessLocked(s *holdings.Session, f func()) {
	var free atomic.Bool
	go func() { s.Held(); free.Store(true) }()
	for range 10_000 {
		if runtime.Gosched(); free.Load() {
			f()
			return
		}
	}
}

// gets checks that a call has been granted at once.
func (a *answer) gets(t tester) types.Grant {
	t.Helper()
	time.Sleep(soon)
	if !a.isOver() {
		t.Fatal("it still waits")
	}
	return a.granted(t)
}

// A key that was released here comes back without a statement. Tokens grow, and the store gets the key when it was not used for a while.
// Proves: trap kept key, promise 3
func TestAReleasedKeyIsKept(t *testing.T) {
	keepers(t, func(t *testing.T, a, b *rig) {
		s := a.eitherSession()
		last := a.keeps(s, "k").Token
		before := a.st.total()
		for range 100 {
			g := a.lock(s, "k")
			if g.Token != last+1 {
				t.Fatalf("token %d after %d", g.Token, last)
			}
			last = g.Token
			a.release(s, g)
		}
		if n := a.st.total() - before; n != 0 {
			t.Errorf("%d statements", n)
		}
		if n := a.counts.keptGrants; n != 100 {
			t.Errorf("%d grants of kept keys are counted", n)
		}
		if n := a.m.state().Kept; n != 1 {
			t.Errorf("%d kept keys are shown", n)
		}
		time.Sleep(300 * time.Millisecond)
		if l := a.has("k"); l.Held {
			t.Errorf("still held: %+v", l)
		}
		if g := b.lock(b.eitherSession(), "k"); g.Token <= last {
			t.Errorf("token %d after %d", g.Token, last)
		}
	})
}

// Without KEEP, nothing is kept, and no ask says so.
func TestNothingIsKeptWithoutKeep(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt, func(c *types.Config, tr *store.Traits) { c.Keep, tr.Hears = 0, true })
		s := r.eitherSession()
		for range 3 {
			g := r.lock(s, "k")
			if r.has("k").Kept {
				t.Error("the store shows a kept key")
			}
			r.release(s, g)
			if r.has("k").Held {
				t.Error("the key is held")
			}
		}
	})
}

// Who wants a kept key elsewhere gets it at once: a waiter, a try, a share, a bind:ttl lock, a group.
// Proves: trap recall
func TestAKeptKeyIsRecalled(t *testing.T) {
	for name, req := range map[string]types.Request{
		"a wait":        {Key: "k", Wait: types.WaitForever},
		"a try":         {Key: "k"},
		"a share":       {Key: "k", Shared: true},
		"bind:ttl":      {Key: "k", Bind: types.BindTTL, TTL: time.Second},
		"a repeatable":  {Key: "k", Bind: types.BindTTL, TTL: time.Second, RequestID: uuid.New()},
		"with min_hold": {Key: "k", MinHold: time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			keepers(t, func(t *testing.T, a, b *rig) {
				s := a.eitherSession()
				was := a.keeps(s, "k")
				time.Sleep(time.Millisecond)
				g := b.ask(context.Background(), b.connectionSession(), req).gets(t)
				if g.Token < was.Token+store.TokensPerGrant {
					t.Errorf("token %d after those of %d", g.Token, was.Token)
				}
				if a.m.acquirer.KeptKeys() != 0 || a.counts.recalls[false] != 1 {
					t.Errorf("%d kept keys, recalls: %v", a.m.acquirer.KeptKeys(), a.counts.recalls)
				}
			})
		})
	}
	t.Run("a group", func(t *testing.T) {
		keepers(t, func(t *testing.T, a, b *rig) {
			s := a.eitherSession()
			a.keeps(s, "k")
			a.keeps(s, "l")
			time.Sleep(time.Millisecond)
			grants, err := b.m.AcquireAll(context.Background(), b.connectionSession(), []string{"j", "k", "l", "m"}, types.Request{})
			if err != nil || len(grants) != 4 {
				t.Errorf("got %v, %v", grants, err)
			}
		})
	})
}

// A try is refused when the other sidecar's session holds the key. It learns by whom, and the next one is refused as ever.
// Proves: trap recall
func TestATryIsRefusedByATaker(t *testing.T) {
	for name, taken := range map[string]bool{"by the first holder": false, "by a taker": true} {
		t.Run(name, func(t *testing.T) {
			keepers(t, func(t *testing.T, a, b *rig) {
				s := a.eitherSession()
				var g types.Grant
				if taken {
					a.keeps(s, "k")
					g = a.takes(s, "k")
				} else {
					g = a.mayKeep(s, "k")
				}
				time.Sleep(time.Millisecond)
				for range 2 {
					began := time.Now()
					_, err := b.m.Acquire(context.Background(), b.eitherSession(), types.Request{Key: "k"})
					held, ok := errors.AsType[*types.HeldError](err)
					if !ok || held.Lock.Token != g.Token || held.Lock.Kept || time.Since(began) > soon {
						t.Errorf("after %v: %v %+v", time.Since(began), err, held)
					}
				}
				if asks, waits := b.st.count("Acquire"), b.st.count("Enqueue"); asks != 1 || waits != 1 {
					t.Errorf("%d asks, %d enqueues: the second try is refused as ever", asks, waits)
				}
				a.release(s, g) // to the store
				if a.has("k").Held {
					t.Error("the key is kept after a recall")
				}
			})
		})
	}
}

// The recall is lost. The other sidecar gets the key nevertheless: soon if it is not used, and in any case when the grant is old.
// Proves: trap recall
func TestALostRecall(t *testing.T) {
	for name, used := range map[string]bool{"an idle key": false, "a key in use": true} {
		t.Run(name, func(t *testing.T) {
			keepers(t, func(t *testing.T, a, b *rig) {
				s := a.eitherSession()
				a.keeps(s, "k")
				a.st.losesRecalls(true)
				began := time.Now()
				c := b.wait(b.eitherSession(), "k", types.WaitForever)
				most := 300 * time.Millisecond
				for used && !c.isOver() && time.Since(began) < time.Minute {
					most = keep.MaxAge + 300*time.Millisecond
					g := a.ask(context.Background(), s, types.Request{Key: "k", Wait: types.WaitForever}).granted(t)
					time.Sleep(23_701 * time.Microsecond) // so the tokens last for longer than the grant, and it is never idle when Due looks
					a.release(s, g)
					synctest.Wait()
				}
				c.granted(t)
				if d := time.Since(began); d > most {
					t.Errorf("after %v", d)
				}
			})
		})
	}
}

// A try elsewhere without a recall is refused after a moment, and leaves nothing.
func TestATryWithoutARecall(t *testing.T) {
	keepers(t, func(t *testing.T, a, b *rig) {
		a.keeps(a.eitherSession(), "k")
		a.st.losesRecalls(true)
		began := time.Now()
		_, err := b.try(b.eitherSession(), "k")
		if d := time.Since(began); !types.Is[*types.HeldError](err) || d != attempt.RecallWait {
			t.Errorf("after %v: %v", d, err)
		}
		time.Sleep(time.Second)
		b.nothingLeft()
	})
}

// A try gets a kept key also if the store is slow, and if no news comes: its time begins when it is queued, and its cancel finds the grant. It does
// not make its sidecar listen: that may take longer than the try.
// Proves: trap recall
func TestATryThatHearsNothingInTime(t *testing.T) {
	for name, breaks := range map[string]func(*double){
		"queued late":   func(st *double) { st.set("Enqueue", fault{before: 3 * attempt.RecallWait}) },
		"answered late": func(st *double) { st.set("Enqueue", fault{after: 3 * attempt.RecallWait}) },
		"without news":  func(st *double) { st.dropNews = true },
		"late and no news": func(st *double) {
			st.dropNews = true
			st.set("Enqueue", fault{before: 3 * attempt.RecallWait})
		},
	} {
		t.Run(name, func(t *testing.T) {
			keepers(t, func(t *testing.T, a, b *rig) {
				a.keeps(a.eitherSession(), "k")
				breaks(b.st)
				began, s := time.Now(), b.eitherSession()
				g, err := b.try(s, "k")
				if d := time.Since(began); err != nil || d > 4*attempt.RecallWait {
					t.Fatalf("after %v: %v", d, err)
				}
				b.listened()
				b.release(s, g)
				b.nothingLeft()
			})
		})
	}
}

// A try of a sidecar that does not hear news looks for itself whether the other one has given the key up, or has it for a session. So it needs no longer
// than such a thing takes, and the next try is refused as ever.
// Proves: trap recall
func TestATryOfASidecarThatDoesNotHear(t *testing.T) {
	for name, inUse := range map[string]bool{"an idle key": false, "a key in use": true} {
		t.Run(name, func(t *testing.T) {
			keepers(t, func(t *testing.T, a, b *rig) {
				s := a.eitherSession()
				g := a.mayKeep(s, "k")
				if !inUse {
					a.release(s, g)
				}
				b.st.hears(false)
				b.st.dropNews = true
				began, other := time.Now(), b.eitherSession()
				got, err := b.try(other, "k")
				held, refused := errors.AsType[*types.HeldError](err)
				if d := time.Since(began); d > attempt.RecallWait/2 || refused != inUse || refused && (held.Lock.Token != g.Token || held.Lock.Kept) {
					t.Fatalf("after %v: %v %+v", d, err, held)
				}
				if !inUse {
					b.release(other, got)
				} else {
					_, err := b.m.Acquire(context.Background(), other, types.Request{Key: "k"})
					if !types.Is[*types.HeldError](err) || b.st.count("Acquire") != 1 {
						t.Errorf("%v, %d asks: the next try is refused as ever", err, b.st.count("Acquire"))
					}
					a.release(s, g)
				}
				time.Sleep(time.Second)
				if n := b.st.count("Check"); n > 3 {
					t.Errorf("%d checks", n)
				}
				b.listened()
				b.nothingLeft()
			})
		})
	}
}

// Tries that meet a waiter are refused at once, so they cost the other sidecar nothing. The one that waits gets the key.
func TestManyTriesOnOneKeptKey(t *testing.T) {
	keepers(t, func(t *testing.T, a, b *rig) {
		a.keeps(a.eitherSession(), "k")
		release := a.st.hold("Release")
		var all []*answer
		for range 20 {
			all = append(all, b.ask(context.Background(), b.explicitSession(), types.Request{Key: "k"}))
			synctest.Wait()
		}
		for i, c := range all[1:] {
			if !c.isOver() || !types.Is[*types.HeldError](c.err) {
				t.Fatalf("try %d: %v", i+1, c.err)
			}
		}
		release()
		all[0].gets(t)
		if n := b.st.count("Enqueue"); n != 1 {
			t.Errorf("%d enqueues", n)
		}
		if n := b.st.asked("Acquire"); n < len(all) {
			t.Errorf("%d asks: a denial by a key that may be free is remembered", n)
		}
	})
}

// The recall comes before the answer with the grant. The sidecar does not keep the key, and the store learns who holds it.
// Proves: trap recall
func TestARecallBeforeTheGrant(t *testing.T) {
	keepers(t, func(t *testing.T, a, b *rig) {
		s := a.explicitSession()
		a.release(s, a.lock(s, "k"))
		time.Sleep(time.Millisecond)
		answer := a.st.holdAnswer("Acquire")
		mine := a.ask(context.Background(), s, types.Request{Key: "k"})
		synctest.Wait()
		time.Sleep(time.Millisecond)
		theirs := b.wait(b.eitherSession(), "k", types.WaitForever)
		answer()
		g := mine.granted(t)
		synctest.Wait()
		if a.has("k").Kept {
			t.Error("others see a key that may be free")
		}
		time.Sleep(time.Millisecond)
		a.release(s, g)
		theirs.gets(t)
	})
}

// A call is told that another sidecar keeps the key. Before it is queued, that one releases the key, and a third one comes. What the call was told decides
// nothing: it is refused by the third one, gets the key from it, or finds the key free. Nor does the first sidecar keep the key as if nobody held it since.
// Proves: trap recall
func TestAThirdSidecarComesBeforeTheQueue(t *testing.T) {
	for name, wait := range map[string]time.Duration{"a try": 0, "a wait": types.WaitForever} {
		for what, comes := range map[string]func(c *rig, s *holdings.Session) types.Grant{
			"has it":   func(c *rig, s *holdings.Session) types.Grant { return c.lock(s, "k") },
			"keeps it": func(c *rig, s *holdings.Session) types.Grant { return c.keeps(s, "k") },
			"had it": func(c *rig, s *holdings.Session) types.Grant {
				g := c.lock(s, "k")
				c.release(s, g)
				return g
			},
		} {
			t.Run(name+", the third "+what, func(t *testing.T) {
				keepers(t, func(t *testing.T, a, b *rig) {
					c := newRigOn(a.t, a.space, "c", keeping)
					s, third := a.explicitSession(), c.explicitSession()
					a.keeps(s, "k")
					enqueue := b.st.hold("Enqueue")
					theirs := b.ask(context.Background(), b.eitherSession(), types.Request{Key: "k", Wait: wait})
					synctest.Wait()
					a.m.acquirer.GiveUp("k")
					synctest.Wait()
					last := comes(c, third)
					time.Sleep(time.Millisecond)
					enqueue()
					time.Sleep(soon)
					switch {
					case what == "has it" && wait == 0:
						if !theirs.isOver() {
							t.Fatal("it still waits")
						}
						if held, ok := errors.AsType[*types.HeldError](theirs.err); !ok || held.Lock.Token != last.Token || held.Lock.Kept {
							t.Fatalf("refused by %+v: %v", held, theirs.err)
						}
						c.release(third, last)
					case what == "has it":
						if theirs.isOver() {
							t.Fatalf("two have the key: %+v, %v", theirs.g, theirs.err)
						}
						c.release(third, last)
						fallthrough
					default:
						g := theirs.gets(t)
						if g.Token <= last.Token {
							t.Errorf("token %d after %d", g.Token, last.Token)
						}
						b.release(theirs.s, g)
					}
					a.lock(s, "k")
					if a.has("k").Kept {
						t.Error("kept, though others had it since")
					}
				})
			})
		}
	}
}

// A recall arrives at any moment of a release or of an acquire. The other sidecar gets the key as soon as it is released.
// Proves: trap recall
func TestARecallAtAnyMoment(t *testing.T) {
	for moment := range 16 {
		keepers(t, func(t *testing.T, a, b *rig) {
			s := a.explicitSession()
			var theirs *answer
			recall := func() {
				a.unlessLocked(s, func() { theirs = b.wait(b.eitherSession(), "k", types.WaitForever) })
			}
			g := a.mayKeep(s, "k")
			time.Sleep(time.Millisecond)
			for range 4 { // release, take, release, take …
				a.clk.atRead(moment, recall)
				done := make(chan struct{})
				go func() {
					defer close(done)
					if g.Token != 0 {
						a.release(s, g)
						g.Token = 0
						return
					}
					g, _ = a.try(s, "k")
				}()
				<-done
				a.clk.next.Store(nil)
				synctest.Wait()
				if theirs != nil {
					break
				}
				time.Sleep(time.Millisecond)
			}
			if theirs == nil {
				theirs = b.wait(b.eitherSession(), "k", types.WaitForever)
			}
			if g.Token != 0 {
				synctest.Wait()
				if l := a.has("k"); l.Kept || l.Token != g.Token {
					t.Errorf("moment %d: the store shows %+v, not token %d", moment, l, g.Token)
				}
				a.release(s, g)
			}
			theirs.gets(t)
			if s.Held() != 0 {
				t.Error("two holders")
			}
		})
	}
}

// A key is given up, and the store does not say whether it has it. Calls here wait for that. They are never told that the key is held, and
// nobody else gets it before.
// Proves: trap kept key
func TestAGiveUpOfUnknownOutcome(t *testing.T) {
	for name, f := range map[string]fault{"lost": {lose: true}, "carried out": {forget: true}, "late": {lose: true, late: 200 * time.Millisecond}} {
		t.Run(name, func(t *testing.T) {
			keepers(t, func(t *testing.T, a, b *rig) {
				s := a.explicitSession()
				was := a.keeps(s, "k")
				a.st.set("Release", f)
				time.Sleep(300 * time.Millisecond) // it is given up now
				_, err := a.try(s, "k")
				if !store.Unavailable(err) {
					t.Errorf("a try: %v", err)
				}
				waiting := a.wait(s, "k", types.WaitForever)
				a.st.lift("Release")
				time.Sleep(time.Second)
				g := waiting.gets(t)
				if g.Token < was.Token+store.TokensPerGrant {
					t.Errorf("token %d after those of %d", g.Token, was.Token)
				}
				time.Sleep(time.Minute) // late releases free nothing
				if l := a.has("k"); !l.Held || l.Token != g.Token {
					t.Errorf("the store has %+v", l)
				}
				if _, err := b.try(b.eitherSession(), "k"); !types.Is[*types.HeldError](err) {
					t.Errorf("a second holder: %v", err)
				}
			})
		})
	}
}

// While a key is given up, all calls of this sidecar wait for that, and then ask.
// Proves: trap kept key
func TestACallMeetsAGiveUp(t *testing.T) {
	keepers(t, func(t *testing.T, a, _ *rig) {
		a.keeps(a.eitherSession(), "k")
		carryOut := a.st.hold("Release")
		time.Sleep(300 * time.Millisecond)
		c := a.ask(context.Background(), a.explicitSession(), types.Request{Key: "k"})
		synctest.Wait()
		if c.isOver() {
			t.Fatalf("not awaited: %v", c.err)
		}
		carryOut()
		g := c.gets(t)
		time.Sleep(time.Millisecond)
		a.release(c.s, g)
		carryOut = a.st.hold("Release")
		time.Sleep(300 * time.Millisecond)
		group := make(chan error, 1)
		go func() {
			_, err := a.m.AcquireAll(context.Background(), a.explicitSession(), []string{"k", "z"}, types.Request{Wait: types.WaitForever})
			group <- err
		}()
		synctest.Wait()
		if len(group) > 0 {
			t.Fatalf("not awaited: %v", <-group)
		}
		carryOut()
		if err := <-group; err != nil {
			t.Error(err)
		}
	})
}

// In an outage, a call that does not wait, and meets a give-up, fails as soon as its own ask would: not at the end of the lease. When the store is back,
// the key is given up, and calls get it.
// Proves: promise 9, trap kept key
func TestACallMeetsAGiveUpInAnOutage(t *testing.T) {
	for name, call := range map[string]func(r *rig) error{
		"a try": func(r *rig) error { _, err := r.try(r.explicitSession(), "k"); return err },
		"a group": func(r *rig) error {
			_, err := r.m.AcquireAll(context.Background(), r.explicitSession(), []string{"k", "z"}, types.Request{})
			return err
		},
		"a watch": func(r *rig) error {
			_, _, err := r.m.Watch(context.Background(), nil, "k", func(Event) {})
			return err
		},
		"a request to stop": func(r *rig) error { return r.m.AskToStop(context.Background(), "k", 0, nil) },
	} {
		for how, broken := range map[string]fault{"refused": {refuse: true}, "lost": {lose: true}} {
			t.Run(name+", "+how, func(t *testing.T) {
				keepers(t, func(t *testing.T, a, _ *rig) {
					a.keeps(a.eitherSession(), "k")
					a.st.setAll(broken)
					time.Sleep(300 * time.Millisecond)
					for range 2 {
						began := time.Now()
						err := call(a)
						if d := time.Since(began); !store.Unavailable(err) || store.OutcomeUnknown(err) || d > soon {
							t.Errorf("after %v: %v", d, err)
						}
					}
					a.st.lift(everyOp...)
					time.Sleep(2 * time.Second)
					a.lock(a.eitherSession(), "k")
				})
			})
		}
	}
}

// One try to give a key up fails, and then the store answers again. A call that does not wait gets the key at once: it neither hears of the old failure, nor
// waits for the next usual try.
// Proves: promise 9, trap kept key
func TestAFailedGiveUpIsNoOutage(t *testing.T) {
	keepers(t, func(t *testing.T, a, b *rig) {
		s := a.explicitSession()
		was := a.keeps(s, "k")
		a.st.set("Release", fault{times: 1, refuse: true})
		time.Sleep(240 * time.Millisecond)
		tries, began := a.st.count("Release"), time.Now()
		g, err := a.try(s, "k")
		if d := time.Since(began); err != nil || d > soon || g.Token < was.Token+store.TokensPerGrant {
			t.Fatalf("after %v: %+v, %v", d, g, err)
		}
		if n := a.st.count("Release") - tries; n != 1 {
			t.Errorf("%d tries to give the key up, want 1", n)
		}
		time.Sleep(time.Minute) // the next usual try frees nothing
		if l := a.has("k"); !l.Held || l.Token != g.Token {
			t.Errorf("the store has %+v", l)
		}
		a.release(s, g)
		b.lock(b.eitherSession(), "k")
	})
}

// The store is away, and has a key that could not be given up. The sidecar does not say from memory that the key is free: it asks, and says that the store is away.
// Proves: promise 18
func TestAKeyThatIsNotGivenUpIsNotFree(t *testing.T) {
	keepers(t, func(t *testing.T, a, _ *rig) {
		a.keeps(a.eitherSession(), "k")
		carryOut := a.st.hold("Release")
		time.Sleep(240 * time.Millisecond)
		if v, err := a.m.Get(context.Background(), nil, "k", false); err != nil || v.Held || !v.Cached {
			t.Errorf("while it is given up: %+v, %v", v, err)
		}
		carryOut()
		time.Sleep(time.Second)
		a.keeps(a.eitherSession(), "k")
		a.st.setAll(fault{refuse: true})
		time.Sleep(time.Second)
		if v, err := a.m.Get(context.Background(), nil, "k", false); !store.Unavailable(err) {
			t.Errorf("in the outage: %+v, %v", v, err)
		}
		a.st.lift(everyOp...)
		time.Sleep(time.Second)
		if v, err := a.m.Get(context.Background(), nil, "k", false); err != nil || v.Held {
			t.Errorf("afterwards: %+v, %v", v, err)
		}
	})
}

// The sidecar stops while a key is given up. A call that meets that hears of the stop, and of no failure of the store.
func TestAStopDuringAGiveUp(t *testing.T) {
	keepers(t, func(t *testing.T, a, _ *rig) {
		a.keeps(a.eitherSession(), "k")
		a.st.set("Release", fault{refuse: true})
		time.Sleep(240 * time.Millisecond)
		carryOut := a.st.hold("Release")
		c := a.ask(context.Background(), a.explicitSession(), types.Request{Key: "k"})
		synctest.Wait()
		go a.m.Stop()
		synctest.Wait()
		carryOut()
		synctest.Wait()
		if !c.isOver() || !errors.Is(c.err, types.ErrDraining) && !errors.Is(c.err, types.ErrSessionEnded) {
			t.Errorf("over %v: %v", c.isOver(), c.err)
		}
	})
}

// Requests that cannot take a kept key get it from the store, after it was given up.
// Proves: trap kept key
func TestOtherRequestsForAnOwnKeptKey(t *testing.T) {
	for name, req := range map[string]types.Request{
		"a share":       {Shared: true},
		"bind:ttl":      {Bind: types.BindTTL, TTL: time.Second},
		"with min_hold": {MinHold: time.Millisecond},
		"another TTL":   {TTL: time.Minute},
		"skip":          {Skip: true, Wait: time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			keepers(t, func(t *testing.T, a, _ *rig) {
				s := a.explicitSession()
				was := a.keeps(s, "k")
				req.Key = "k"
				g := a.ask(context.Background(), s, req).gets(t)
				if g.Token < was.Token+store.TokensPerGrant {
					t.Errorf("token %d after those of %d", g.Token, was.Token)
				}
			})
		})
	}
	t.Run("a group", func(t *testing.T) {
		keepers(t, func(t *testing.T, a, _ *rig) {
			s := a.explicitSession()
			a.keeps(s, "k")
			a.keeps(s, "l")
			if _, err := a.m.AcquireAll(context.Background(), s, []string{"k", "l"}, types.Request{}); err != nil {
				t.Error(err)
			}
		})
	})
}

// A waiting call that is behind another one in the line gets the key when that one leaves, for instance because its lease does not open.
// Proves: trap kept key
func TestACallBehindOneThatLeaves(t *testing.T) {
	keepers(t, func(t *testing.T, a, _ *rig) {
		a.keeps(a.eitherSession(), "k")
		opened := a.st.hold("OpenLeases")
		ctx, leave := context.WithCancel(context.Background())
		a.ask(ctx, a.explicitSession(), types.Request{Key: "k", TTL: time.Minute, Wait: types.WaitForever})
		synctest.Wait()
		behind := a.wait(a.explicitSession(), "k", types.WaitForever)
		if behind.isOver() {
			t.Fatal("it has overtaken the call before it")
		}
		leave()
		behind.gets(t)
		opened()
	})
}

// Of two calls at a time, one takes the key. The other one is refused, or waits and gets it.
func TestTwoCallsForAKeptKey(t *testing.T) {
	keepers(t, func(t *testing.T, a, _ *rig) {
		a.keeps(a.eitherSession(), "k")
		s, o := a.explicitSession(), a.explicitSession()
		for range 50 {
			first := a.ask(context.Background(), s, types.Request{Key: "k", NoCache: true})
			second := a.ask(context.Background(), o, types.Request{Key: "k", Wait: types.WaitForever})
			synctest.Wait()
			if first.isOver() && first.err == nil {
				a.release(first.s, first.g)
			} else if !types.Is[*types.HeldError](first.err) {
				t.Fatal(first.err)
			}
			g := second.gets(t)
			a.release(second.s, g)
			time.Sleep(time.Millisecond)
		}
	})
}

// Nobody gets a key that was taken: its session ends, its caller leaves, or its answer is not written. The key is free at once.
// Proves: trap kept key
func TestAnUndeliveredTake(t *testing.T) {
	for name, end := range map[string]func(a *rig, s *holdings.Session){
		"its session ends": func(_ *rig, s *holdings.Session) { s.End(types.EndDropped) },
		"the sidecar drains": func(a *rig, _ *holdings.Session) {
			a.m.Drain()
		},
	} {
		for moment := range 12 {
			t.Run(name, func(t *testing.T) {
				keepers(t, func(t *testing.T, a, b *rig) {
					a.keeps(a.connectionSession(), "k")
					time.Sleep(time.Millisecond)
					s := a.connectionSession()
					a.clk.atRead(moment, func() { a.unlessLocked(s, func() { end(a, s) }) })
					g, err := a.try(s, "k")
					a.clk.next.Store(nil)
					if err == nil && s.Find("k", g.Token) != nil {
						a.release(s, g)
					}
					synctest.Wait()
					b.ask(context.Background(), b.eitherSession(), types.Request{Key: "k"}).gets(t)
				})
			})
		}
	}
	t.Run("its answer is not written", func(t *testing.T) {
		keepers(t, func(t *testing.T, a, _ *rig) {
			s := a.explicitSession()
			a.keeps(s, "k")
			a.m.HandBack(s, a.takes(s, "k"))
			synctest.Wait()
			if l := a.has("k"); l.Held {
				t.Errorf("held: %+v", l)
			}
			a.nothingRemembered()
		})
	})
	t.Run("its caller has left", func(t *testing.T) {
		keepers(t, func(_ *testing.T, a, _ *rig) {
			s := a.explicitSession()
			a.keeps(s, "k")
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			if g, err := a.m.Acquire(ctx, s, types.Request{Key: "k"}); err == nil {
				a.m.HandBack(s, g)
			}
			time.Sleep(300 * time.Millisecond)
			a.nothingLeft()
		})
	})
}

// A request to stop, or a break, for an idle key frees it. It never ends the lock of a later session here.
// Proves: trap kept key
func TestASignalForAKeptKey(t *testing.T) {
	keepers(t, func(t *testing.T, a, b *rig) {
		s := a.explicitSession()
		a.keeps(s, "k")
		seen, err := b.m.Get(context.Background(), nil, "k", true)
		b.must(err)
		if !seen.Kept {
			t.Fatalf("seen: %+v", seen.Lock)
		}
		b.must(b.m.Break(context.Background(), seen.Lock, 0))
		if a.has("k").Held {
			t.Error("still held")
		}
	})
	for name, own := range map[string]bool{"here": true, "elsewhere": false} {
		for _, token := range []int64{0, 1} {
			keepers(t, func(t *testing.T, a, b *rig) {
				s, by := a.explicitSession(), b
				if own {
					by = a
				}
				if was := a.keeps(s, "k"); token != 0 {
					token = was.Token
				}
				time.Sleep(time.Millisecond)
				if err := by.m.AskToStop(context.Background(), "k", token, nil); !types.Is[*types.NotHeldError](err) {
					t.Errorf("%s, token %d: %v", name, token, err)
				}
				if a.has("k").Held {
					t.Error("still held after a request to stop")
				}
				a.lock(s, "k")
				time.Sleep(10 * time.Second)
				if told := a.stops(); len(told) > 0 {
					t.Errorf("%s: a later holder was asked to stop: %+v", name, told)
				}
			})
		}
	}
	keepers(t, func(t *testing.T, a, b *rig) {
		s := a.explicitSession()
		a.keeps(s, "k")
		seen, err := b.m.Get(context.Background(), nil, "k", true)
		b.must(err)
		g := a.takes(s, "k")
		began := time.Now()
		b.must(b.m.Break(context.Background(), seen.Lock, 0))
		if d := time.Since(began); d > 50*time.Millisecond {
			t.Errorf("the break took %v", d)
		}
		if s.Find("k", g.Token) == nil || len(a.losses()) > 0 {
			t.Error("the break of an earlier grant ended a later one")
		}
		now, err := b.m.Get(context.Background(), nil, "k", true)
		b.must(err)
		if now.Token != g.Token {
			t.Errorf("others see token %d, not %d", now.Token, g.Token)
		}
		b.must(b.m.Break(context.Background(), now.Lock, 0))
		if lost := a.losses(); len(lost) != 1 || lost[0].Token != g.Token {
			t.Errorf("lost %+v", lost)
		}
	})
}

// A request to stop recalls a key that another sidecar may only keep. If nothing comes of that, it waits for 100 ms, and then means the holder that the store
// shows.
// Proves: promise 17, trap recall
func TestAStopThatRecallsInVain(t *testing.T) {
	keepers(t, func(t *testing.T, a, b *rig) {
		a.keeps(a.explicitSession(), "k")
		a.st.losesRecalls(true)
		began := time.Now()
		b.must(b.m.AskToStop(context.Background(), "k", 0, nil))
		if d := time.Since(began); d < recallLimit || d > recallLimit+soon {
			t.Errorf("after %v", d)
		}
	})
}

// The holder of a key that was taken is told to stop, as the one that others see.
// Proves: trap kept key
func TestATakerIsAskedToStop(t *testing.T) {
	for _, own := range []bool{true, false} {
		keepers(t, func(t *testing.T, a, b *rig) {
			s, by := a.explicitSession(), b
			if own {
				by = a
			}
			was := a.keeps(s, "k")
			g := a.takes(s, "k")
			if err := by.m.AskToStop(context.Background(), "k", was.Token, nil); !types.Is[*types.NotHeldError](err) {
				t.Errorf("a request to stop an earlier holder: %v", err)
			}
			time.Sleep(soon)
			if told := a.stops(); len(told) > 0 {
				t.Errorf("told %+v", told)
			}
			by.must(by.m.AskToStop(context.Background(), "k", g.Token, nil))
			time.Sleep(soon)
			if told := a.stops(); len(told) != 1 || told[0].Token != g.Token {
				t.Errorf("told %+v", told)
			}
		})
	}
	keepers(t, func(t *testing.T, a, b *rig) {
		s := a.explicitSession()
		a.keeps(s, "k")
		g := a.takes(s, "k")
		b.must(b.m.AskToStop(context.Background(), "k", 0, nil))
		time.Sleep(soon)
		if told := a.stops(); len(told) != 1 || told[0].Token != g.Token {
			t.Errorf("told %+v", told)
		}
		a.release(s, g)
		if a.has("k").Held {
			t.Error("kept after a request to stop")
		}
	})
}

// A request to stop watches a key that another sidecar may only keep, and so learns whether it has a holder. A sidecar that watches too much refuses no request:
// it asks the holder whom the store knows.
// Proves: promise 17, trap kept key
func TestAStopFromASidecarThatWatchesTooMuch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newRig(t, keeping)
		b := a.another(keeping, with(func(c *types.Config) { c.MaxWaiters = 1 }))
		other := b.watch(nil, "other")
		var limit *LimitError
		if _, _, err := b.m.Watch(context.Background(), nil, "k", func(Event) {}); !errors.As(err, &limit) {
			t.Fatalf("another watch: %v", err)
		}
		s := a.explicitSession()
		asked := 0
		for _, g := range []types.Grant{a.mayKeep(s, "k"), {}} {
			if g.Token == 0 {
				a.keeps(s, "k")
				g = a.takes(s, "k") // the store knows the holder before
			}
			if !a.has("k").Kept {
				t.Fatal("the key may not be kept")
			}
			b.must(b.m.AskToStop(context.Background(), "k", 0, nil))
			time.Sleep(soon)
			asked++
			if told := a.stops(); len(told) != asked || told[asked-1].Token != g.Token {
				t.Errorf("told %+v, want token %d", told, g.Token)
			}
			a.release(s, g)
		}
		other.stop()
	})
}

// A break at this sidecar finds a token that only an app here knows.
// Proves: trap kept key
func TestABreakFindsATakenToken(t *testing.T) {
	keepers(t, func(t *testing.T, a, _ *rig) {
		s := a.explicitSession()
		a.keeps(s, "k")
		a.release(s, a.takes(s, "k"))
		g := a.takes(s, "k")
		v, err := a.m.Get(context.Background(), nil, "k", false)
		a.must(err)
		a.must(a.m.Break(context.Background(), v.Lock, 0))
		if lost := a.losses(); len(lost) != 1 || lost[0].Token != g.Token {
			t.Errorf("lost %+v", lost)
		}
	})
}

// A watcher sees the holders of a key that was kept: here, and elsewhere.
// Proves: trap kept key
func TestAWatchOfAKeptKey(t *testing.T) {
	for name, own := range map[string]bool{"here": true, "elsewhere": false} {
		t.Run(name, func(t *testing.T) {
			keepers(t, func(t *testing.T, a, b *rig) {
				s := a.explicitSession()
				a.keeps(s, "k")
				by := b
				if own {
					by = a
				}
				w := by.watch(nil, "k")
				time.Sleep(soon)
				if own && w.view.Held {
					t.Errorf("shown as %+v", w.view)
				}
				if w.view.Held {
					w.want(released)
				}
				for range 3 {
					g := a.lock(s, "k")
					a.release(s, g)
					w.want(acquired, released)
				}
				w.stop()
			})
		})
	}
}

// The sidecar's own answers about a key that it keeps are exact.
// Proves: trap kept key
func TestAKeptKeyIsShownAsFree(t *testing.T) {
	keepers(t, func(t *testing.T, a, b *rig) {
		s := a.explicitSession()
		a.keeps(s, "k")
		for _, noCache := range []bool{false, true} {
			v, err := a.m.Get(context.Background(), s, "k", noCache)
			a.must(err)
			if v.Held {
				t.Errorf("here: %+v", v)
			}
		}
		for _, by := range []*rig{a, b} {
			page, err := by.m.List(context.Background(), nil, types.ListRequest{Limit: 10})
			by.must(err)
			if n := len(page.Locks); (by == a) != (n == 0) {
				t.Errorf("%s lists %d locks", by.m.cfg.Instance, n)
			}
		}
		a.takes(s, "k")
		v, err := a.m.Get(context.Background(), s, "k", true)
		a.must(err)
		if !v.Held || v.Kept {
			t.Errorf("here: %+v", v)
		}
	})
}

// The lease is lost at any moment of an acquire that takes a key: the call does not get a lock that is over.
// Proves: promise 2, trap kept key
func TestTheLeaseIsLostDuringATake(t *testing.T) {
	for moment := range 12 {
		keepers(t, func(t *testing.T, a, _ *rig) {
			s := a.explicitSession()
			a.keeps(s, "k")
			a.clk.atRead(moment, func() { a.clk.stop(time.Minute) })
			g, err := a.try(s, "k")
			a.clk.next.Store(nil)
			if err == nil && s.Find("k", g.Token) == nil && len(a.losses()) == 0 {
				t.Errorf("moment %d: it got a lock that it does not hold", moment)
			}
			if err == nil && (g.ExpiresIn <= 0 || g.ExpiresIn > 15*time.Second) {
				t.Errorf("moment %d: %v left", moment, g.ExpiresIn)
			}
			time.Sleep(time.Minute)
			s.End(types.EndDropped)
			time.Sleep(time.Minute)
			a.nothingLeft()
		})
	}
}

// A lease that was lost early is revoked only at its deadline, but nobody believes in its kept keys: they are free at once.
func TestAnEarlyLossFreesKeptKeys(t *testing.T) {
	keepers(t, func(t *testing.T, a, b *rig) {
		a.keeps(a.explicitSession(), "k")
		a.m.leases.Lose(a.m.leases.Get(a.m.cfg.TTL), types.LostExpired)
		synctest.Wait()
		if l := b.has("k"); l.Held {
			t.Errorf("held: %+v", l)
		}
		b.ask(context.Background(), b.eitherSession(), types.Request{Key: "k"}).gets(t)
		time.Sleep(time.Minute)
		a.nothingRemembered()
	})
}

// The lease is lost while a release keeps its key, when it was found that the lease is good and before the key is kept. The loss does not find the key, so the
// release gives it up.
// Proves: trap kept key
func TestALossMeetsARelease(t *testing.T) {
	keepers(t, func(t *testing.T, a, _ *rig) {
		s := a.explicitSession()
		g := a.mayKeep(s, "k")
		a.st.atTraits(func() { a.m.leases.Lose(a.m.leases.Get(a.m.cfg.TTL), types.LostExpired) })
		a.release(s, g)
		synctest.Wait()
		if l := a.has("k"); l.Held {
			t.Errorf("held: %+v", l)
		}
	})
}

// A failover makes the lease of kept keys doubtful. They are given up at once, because nobody verifies them, and what is released after that is not kept.
// Proves: trap kept key, trap failover
func TestAFailoverGivesKeptKeysUp(t *testing.T) {
	keepers(t, func(t *testing.T, a, _ *rig) {
		s := a.explicitSession()
		a.lock(s, "opens the lease")
		l, renew := a.m.leases.Get(a.m.cfg.TTL), a.st.hold("Renew")
		for a.st.count("Renew") == 0 {
			time.Sleep(10 * time.Millisecond)
		}
		a.keeps(s, "kept")
		held := a.mayKeep(s, "held")
		a.st.failover()
		renew()
		if synctest.Wait(); !a.m.leases.Retired(l) {
			t.Fatal("the renewal has not named the lease")
		}
		if l := a.has("kept"); l.Held {
			t.Errorf("held: %+v", l)
		}
		a.release(s, held)
		if l := a.has("held"); l.Held {
			t.Errorf("kept under a doubtful lease: %+v", l)
		}
	})
}

// A renewal names the lease of kept keys after a failover: they are given up. A take that was under way then is verified, or handed back.
func TestAFailoverWithKeptKeys(t *testing.T) {
	for moment := range 12 {
		keepers(t, func(t *testing.T, a, b *rig) {
			s := a.explicitSession()
			a.keeps(s, "k")
			l := a.m.leases.Get(a.m.cfg.TTL)
			var g types.Grant
			a.clk.atRead(moment, func() {
				a.unlessLocked(s, func() {
					a.st.failover()
					for range 60 { // until the next renewal
						if time.Sleep(100 * time.Millisecond); a.m.leases.Retired(l) {
							break
						}
					}
					synctest.Wait()
				})
			})
			g, err := a.try(s, "k")
			a.clk.next.Store(nil)
			if err != nil && !store.Unavailable(err) {
				t.Errorf("moment %d: %v", moment, err)
			}
			if h := s.Find("k", g.Token); err == nil && a.counts.keptGrants > 0 && a.m.leases.Retired(l) && h.Lease() == l && !h.IsVerified() {
				t.Errorf("moment %d: the app has a lock that was not verified", moment)
			}
			time.Sleep(10 * time.Second)
			if h := s.Find("k", g.Token); err == nil && h != nil {
				if l := a.has("k"); !h.IsKnownAs(l.Token) {
					t.Errorf("moment %d: the store has %+v", moment, l)
				}
				a.release(s, g)
			}
			synctest.Wait()
			time.Sleep(300 * time.Millisecond)
			b.ask(context.Background(), b.eitherSession(), types.Request{Key: "k"}).gets(t)
		})
	}
}

// A take is handed back if its lease was retired meanwhile. If the store does not confirm that, the call ends in time.
// Proves: promise 9, trap kept key
func TestATakeIsHandedBackInTime(t *testing.T) {
	handedBack := 0
	for moment := range 12 {
		keepers(t, func(t *testing.T, a, _ *rig) {
			s := a.explicitSession()
			a.keeps(s, "k")
			l := a.m.leases.Get(a.m.cfg.TTL)
			var went atomic.Int64
			a.clk.atRead(moment, func() {
				a.unlessLocked(s, func() {
					a.st.failover()
					for range 60 { // until the next renewal
						if time.Sleep(100 * time.Millisecond); a.m.leases.Retired(l) {
							break
						}
					}
					a.st.set("Release", fault{lose: true})
					went.Store(time.Now().UnixNano())
				})
			})
			ctx, cancel := context.WithTimeout(t.Context(), 10*types.Patience(a.m.cfg.StoreTimeout))
			defer cancel()
			_, err := a.m.Acquire(ctx, s, types.Request{Key: "k", NoCache: true})
			a.clk.next.Store(nil)
			if took := time.Since(time.Unix(0, went.Load())); went.Load() != 0 && took > types.Patience(a.m.cfg.StoreTimeout)+soon {
				t.Errorf("moment %d: answered after %s with %v", moment, took, err)
			}
			if a.st.count("Release") > 1 && err != nil { // the first one makes the key keepable
				handedBack++
			}
			a.st.lift("Release")
		})
	}
	if handedBack == 0 {
		t.Error("no take was handed back")
	}
}

// The drain gives all kept keys up first. After Stop, nothing is left.
// Proves: trap kept key
func TestADrainGivesKeptKeysUp(t *testing.T) {
	keepers(t, func(t *testing.T, a, b *rig) {
		s := a.explicitSession()
		a.keeps(s, "k")
		a.keeps(s, "l")
		held := a.takes(s, "l")
		a.m.Drain()
		synctest.Wait()
		b.ask(context.Background(), b.eitherSession(), types.Request{Key: "k"}).gets(t)
		a.release(s, held)
		if a.has("l").Held {
			t.Error("kept during the drain")
		}
		a.m.Stop()
		if !a.m.LeftNothing() {
			t.Error("something is left")
		}
	})
	keepers(t, func(t *testing.T, a, b *rig) {
		a.keeps(a.explicitSession(), "k")
		a.m.Stop()
		b.ask(context.Background(), b.eitherSession(), types.Request{Key: "k"}).gets(t)
		a.nothingRemembered()
	})
}

// When news may have been missed, or cannot be heard, nothing is kept.
// Proves: trap recall
func TestNothingIsKeptUnheard(t *testing.T) {
	keepers(t, func(t *testing.T, a, _ *rig) {
		s := a.explicitSession()
		a.keeps(s, "k")
		a.m.News(store.EveryWait)
		synctest.Wait()
		if a.has("k").Held {
			t.Error("kept although a recall may have been missed")
		}
		g := a.mayKeep(s, "k")
		a.m.News(store.EveryWait)
		if a.release(s, g); a.has("k").Held {
			t.Error("kept although a recall may have been missed while it was held")
		}
		time.Sleep(time.Millisecond)
		a.keeps(s, "k")
		a.st.hears(false)
		time.Sleep(100 * time.Millisecond) // without news
		if a.has("k").Held {
			t.Error("kept although a recall is not heard")
		}
		a.release(s, a.lock(s, "k"))
		a.release(s, a.lock(s, "k"))
		if a.has("k").Held {
			t.Error("kept although recalls are not heard")
		}
	})
}

// A grant has a limited number of tokens. Then the key is released and asked for again.
// Proves: trap kept key, promise 3
func TestTheTokensOfAKeptKeyEnd(t *testing.T) {
	keepers(t, func(t *testing.T, a, b *rig) {
		s := a.explicitSession()
		last := a.keeps(s, "k").Token
		before := a.st.total()
		for range 3 * store.TokensPerGrant {
			g := a.lock(s, "k")
			if g.Token <= last {
				t.Fatalf("token %d after %d", g.Token, last)
			}
			last = g.Token
			a.release(s, g)
			time.Sleep(time.Microsecond)
		}
		if n := a.st.total() - before; n > 8 {
			t.Errorf("%d statements", n)
		}
		if g := b.ask(context.Background(), b.eitherSession(), types.Request{Key: "k"}).gets(t); g.Token <= last {
			t.Errorf("token %d after %d", g.Token, last)
		}
	})
}

// A lock that was taken is handed on to calls that wait, under tokens of the grant.
func TestATakenLockIsHandedOn(t *testing.T) {
	for _, used := range []int{0, store.TokensPerGrant - 3} {
		keepers(t, func(t *testing.T, a, b *rig) {
			s := a.explicitSession()
			first := a.keeps(s, "k").Token
			for range used {
				a.release(s, a.takes(s, "k"))
			}
			g := a.takes(s, "k")
			last := g.Token
			var calls []*answer
			for range 5 {
				calls = append(calls, a.wait(a.explicitSession(), "k", types.WaitForever))
			}
			time.Sleep(time.Millisecond)
			a.release(s, g)
			for _, c := range calls {
				g := c.gets(t)
				if g.Token <= last {
					t.Errorf("token %d after %d", g.Token, last)
				}
				last = g.Token
				if l := a.has("k"); !l.Held || l.Token == first && last-first >= store.TokensPerGrant {
					t.Errorf("%d is beyond the grant %d", last, first)
				}
				a.release(c.s, g)
			}
			synctest.Wait()
			if l := a.has("k"); l.Held && !l.Kept {
				t.Errorf("left: %+v", l)
			}
			if g := b.ask(context.Background(), b.eitherSession(), types.Request{Key: "k"}).gets(t); g.Token <= last {
				t.Errorf("token %d after %d", g.Token, last)
			}
		})
	}
}

// Keeping does not pay if others want the key. Then the key must come here several times in a row before it is kept again.
func TestKeepingMustPay(t *testing.T) {
	keepers(t, func(t *testing.T, a, b *rig) {
		s, o := a.explicitSession(), b.explicitSession()
		other := func() {
			time.Sleep(time.Millisecond)
			g := b.ask(context.Background(), o, types.Request{Key: "k", Wait: types.WaitForever}).gets(t)
			b.release(o, g)
			time.Sleep(time.Millisecond)
		}
		asks := func() (n int) { // how many pairs until the key is kept
			for n = 1; ; n++ {
				a.release(s, a.lock(s, "k"))
				if a.m.acquirer.IsKept("k") {
					return n
				}
				time.Sleep(time.Millisecond)
				if n > 100 {
					t.Fatal("never kept again")
				}
			}
		}
		var got []int
		for range 8 {
			got = append(got, asks())
			other()
		}
		for i := 1; i < len(got); i++ {
			if got[i] < got[i-1] {
				t.Errorf("pairs until the key is kept: %v", got)
			}
		}
		if first, last := got[0], got[len(got)-1]; first != 2 || last < 64 || last > 70 {
			t.Errorf("pairs until the key is kept: %v", got)
		}
		time.Sleep(time.Second) // new keys are not worth it: one a second is kept to find out
		asks()
		pays := func() {
			for range 10 {
				a.release(s, a.takes(s, "k"))
			}
			other()
		}
		pays()
		if n := asks(); n > 40 {
			t.Errorf("after it has paid: %d pairs", n)
		}
		pays() // again: of 64 in a row, 16 are left
		asks()
		other() // too early
		time.Sleep(time.Second)
		if n := asks(); n < 32 || n > 40 {
			t.Errorf("after it has paid twice, and then not: %d pairs", n)
		}
		if a.counts.recalls[true] != 2 {
			t.Errorf("recalls: %v", a.counts.recalls)
		}
	})
}

// The store learns of a taker that holds the key for long, and of a first holder that holds it for so long that it cannot be kept.
func TestTheStoreLearnsOfALongHold(t *testing.T) {
	keepers(t, func(t *testing.T, a, _ *rig) {
		s := a.explicitSession()
		first := a.mayKeep(s, "f")
		a.keeps(s, "k")
		g := a.takes(s, "k")
		time.Sleep(2 * attempt.CohortTime)
		if l := a.has("k"); l.Kept || l.Token != g.Token || l.Holder.Session != s.Name() {
			t.Errorf("a taker: %+v", l)
		}
		if l := a.has("f"); !l.Kept {
			t.Errorf("a first holder: %+v", l)
		}
		time.Sleep(keep.MaxAge)
		if l := a.has("f"); l.Kept || l.Token != first.Token {
			t.Errorf("a first holder: %+v", l)
		}
		a.release(s, g)
		a.release(s, first)
		if a.has("k").Held || a.has("f").Held {
			t.Error("kept")
		}
		a.nothingRemembered()
	})
}

// A holder changes its data while it releases the lock. Either is first; the key is never left to nobody.
// Proves: trap kept key
func TestDataChangesDuringARelease(t *testing.T) {
	for moment := range 24 {
		for name, taken := range map[string]bool{"first": false, "taken": true} {
			t.Run(name, func(t *testing.T) {
				keepers(t, func(t *testing.T, a, b *rig) {
					s := a.explicitSession()
					g := a.mayKeep(s, "k")
					if taken {
						a.release(s, g)
						g = a.takes(s, "k")
					}
					time.Sleep(time.Millisecond)
					var others sync.WaitGroup
					first, second := func() { a.release(s, g) }, func() { _ = a.patch(s, g, `"data"`) }
					if moment%2 == 0 {
						first, second = second, first
					}
					began := false
					a.clk.atRead(moment/2, func() {
						a.unlessLocked(s, func() {
							began = true
							others.Go(second)
							synctest.Wait()
						})
					})
					done := make(chan struct{})
					go func() { defer close(done); first() }()
					<-done
					a.clk.next.Store(nil)
					if !began {
						second()
					}
					a.clk.next.Store(nil)
					others.Wait()
					synctest.Wait()
					time.Sleep(300 * time.Millisecond)
					if l := a.has("k"); l.Held {
						t.Fatalf("held by nobody: %+v", l)
					}
					b.lock(b.eitherSession(), "k")
				})
			})
		}
	}
}

// An outcome, an end of the session, a loss and a reentry are as ever: such a lock is not kept.
func TestOnlyAReleaseByTheAppKeepsAKey(t *testing.T) {
	for name, end := range map[string]func(a *rig, s *holdings.Session, g types.Grant){
		"an outcome": func(a *rig, s *holdings.Session, g types.Grant) { a.succeed(s, g) },
		"the end of the session": func(_ *rig, s *holdings.Session, _ types.Grant) {
			<-s.End(types.EndDeleted)
		},
		"a loss": func(a *rig, _ *holdings.Session, _ types.Grant) {
			a.m.holdings.Get("k").LoseAndRelease(types.LostMaxHold)
		},
	} {
		for _, taken := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				keepers(t, func(t *testing.T, a, _ *rig) {
					s := a.explicitSession()
					g := a.mayKeep(s, "k")
					if taken {
						a.release(s, g)
						g = a.takes(s, "k")
					}
					end(a, s, g)
					synctest.Wait()
					if l := a.has("k"); l.Held {
						t.Errorf("held: %+v", l)
					}
				})
			})
		}
	}
}

// The keys of a call for several are not kept: its next call would have to give them all up first.
// Proves: trap kept key
func TestTheKeysOfAGroupAreNotKept(t *testing.T) {
	keepers(t, func(t *testing.T, a, _ *rig) {
		s, keys := a.explicitSession(), []string{"k", "l"}
		for _, key := range keys {
			a.release(s, a.lock(s, key))
		}
		time.Sleep(time.Millisecond)
		for _, g := range a.askAll(context.Background(), s, types.Request{}, keys...).granted(t, keys...) {
			if l := a.has(g.Key); l.Kept {
				t.Errorf("shown as %+v", l)
			}
			a.release(s, g)
			if l := a.has(g.Key); l.Held {
				t.Errorf("held: %+v", l)
			}
		}
	})
}

// A call that is here before the release does not find the key held after it: the key is not kept past the call.
// Proves: trap kept key
func TestACallIsHereBeforeTheRelease(t *testing.T) {
	keepers(t, func(t *testing.T, a, _ *rig) {
		s := a.explicitSession()
		g := a.mayKeep(s, "k")
		carryOut := a.st.hold("Acquire")
		c := a.ask(context.Background(), a.explicitSession(), types.Request{Key: "k", NoCache: true})
		synctest.Wait()
		a.release(s, g)
		carryOut()
		c.gets(t)
	})
}

// A denial of before the release is not remembered after it.
// Proves: trap kept key
func TestADenialBeforeARelease(t *testing.T) {
	keepers(t, func(t *testing.T, a, _ *rig) {
		s := a.explicitSession()
		g := a.mayKeep(s, "k")
		if _, err := a.try(a.explicitSession(), "k"); !types.Is[*types.HeldError](err) {
			t.Fatal(err)
		}
		a.release(s, g)
		a.ask(context.Background(), a.explicitSession(), types.Request{Key: "k"}).gets(t)
	})
}

// A call that waits behind a lock that may be kept ends when it is to get the lock. The store has it in its queue, so the release is for the store.
// Proves: trap kept key
func TestAWaiterEndsWhenItIsServed(t *testing.T) {
	for moment := range 10 {
		keepers(t, func(t *testing.T, a, b *rig) {
			s, o := a.explicitSession(), a.explicitSession()
			g := a.mayKeep(s, "k")
			a.wait(o, "k", types.WaitForever)
			a.clk.atRead(moment, func() { a.unlessLocked(o, func() { o.End(types.EndDropped) }) })
			a.release(s, g)
			a.clk.next.Store(nil)
			o.End(types.EndDropped)
			time.Sleep(time.Second)
			if l := a.has("k"); l.Held {
				t.Errorf("moment %d: held by nobody: %+v", moment, l)
			}
			b.ask(context.Background(), b.eitherSession(), types.Request{Key: "k"}).gets(t)
		})
	}
}

// uses lets a session have a key so often.
func (r *rig) uses(s *holdings.Session, key string, times int) {
	r.t.Helper()
	for range times {
		r.release(s, r.lock(s, key))
	}
}

// A store that hears recalls only while keys are kept is told so, when a sidecar has wanted keys again so often that it may pay.
// Proves: rule cost
func TestTheStoreIsToldThatKeysAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newRig(t, keeping)
		a.st.hears(false)
		a.st.onKeeping = a.st.hears
		s := a.explicitSession()
		a.uses(s, "k", attempt.LeastUses) // each but the first one wants to keep the key
		a.listened()
		a.uses(s, "k", 1) // now the store begins to hear
		a.keeps(s, "k")
		a.listened(true) // because of the recall
		time.Sleep(time.Minute)
		if a.st.Traits().Hears {
			t.Error("the store was not told that no key is kept any more")
		}
		a.listened(true, false)
		a.uses(s, "k", 2*attempt.LeastUses) // that did not pay, so more are needed
		if a.st.Traits().Hears {
			t.Error("the store hears again as soon as if that had paid")
		}
		a.uses(s, "k", 1)
		a.keeps(s, "k")
	})
}

// A sidecar that wants keys again now and then does not make the store hear. Once it hears, it goes on while enough kept keys are taken.
// Proves: rule cost
func TestHearingMustPay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newRig(t, keeping)
		a.st.hears(false)
		a.st.onKeeping = a.st.hears
		s := a.explicitSession()
		for range 100 {
			a.uses(s, "k", 2)
			time.Sleep(9 * time.Second)
		}
		a.listened()
		a.uses(s, "k", attempt.LeastUses+1)
		for range 100 {
			a.uses(s, "k", 4) // one ask, one grant that may be kept, and two takes
			time.Sleep(time.Second)
			if !a.st.Traits().Hears {
				t.Fatal("the store hears no recalls though kept keys are taken")
			}
		}
		for range 3 {
			a.uses(s, "k", 4)
			time.Sleep(9 * time.Second)
		}
		if a.st.Traits().Hears {
			t.Error("the store hears recalls for few takes")
		}
	})
}

// New keys that are each wanted again once save nothing, although some are kept at each moment. The hearing ends, and begins more and more seldom.
// Proves: rule cost
func TestHearingForKeysThatNobodyTakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newRig(t, keeping)
		a.st.hears(false)
		var ends int
		a.st.onKeeping = func(on bool) {
			if a.st.hears(on); !on {
				ends++
			}
		}
		s := a.explicitSession()
		for i := range 600 {
			a.uses(s, fmt.Sprint("k", i), 2)
			time.Sleep(50 * time.Millisecond)
		}
		if synctest.Wait(); ends < 2 {
			t.Errorf("the hearing has ended %d times in 30 s", ends)
		}
		if n := a.counts.keptGrants; n != 0 {
			t.Errorf("%d kept keys were taken", n)
		}
	})
}

// The store hears anyway. It is told that keys are kept, because then it checks more often whether it does.
// Proves: trap recall
func TestAStoreThatHearsIsToldThatKeysAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newRig(t, keeping)
		told := make(chan bool, 100)
		a.st.onKeeping = func(on bool) { told <- on }
		a.keeps(a.explicitSession(), "k")
		if len(told) != 1 || !<-told {
			t.Error("not told")
		}
		time.Sleep(time.Minute)
		if len(told) != 1 || <-told {
			t.Error("not told that no key is kept any more")
		}
	})
}

// A sidecar that keeps nothing asks another one to stop, which only keeps the key. It asks the store for the key first, but not for a lock of its own.
// Proves: promise 17
func TestAStopFromASidecarThatKeepsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newRig(t, keeping)
		b := a.another()
		a.keeps(a.explicitSession(), "k")
		if err := b.m.AskToStop(context.Background(), "k", 0, nil); !types.Is[*types.NotHeldError](err) {
			t.Errorf("a key that is only kept: %v", err)
		}
		s := b.explicitSession()
		b.lock(s, "own")
		before := b.st.count("Get")
		if err := b.m.AskToStop(context.Background(), "own", 0, nil); err != nil {
			t.Error(err)
		}
		if n := b.st.count("Get") - before; n != 0 {
			t.Errorf("%d reads for a stop of an own lock", n)
		}
	})
}

// A watch begins here while a session has a lock that may be kept. The watcher hears of its end, and of each later holder.
// Proves: trap kept key
func TestAWatchBeginsAtAKeepableLock(t *testing.T) {
	keepers(t, func(_ *testing.T, a, _ *rig) {
		s := a.explicitSession()
		g := a.mayKeep(s, "k")
		time.Sleep(time.Millisecond)
		w := a.watch(nil, "k")
		time.Sleep(time.Millisecond)
		a.release(s, g)
		w.want(released)
		a.release(s, a.lock(s, "k"))
		w.want(acquired, released)
		w.stop()
	})
}

// A call that waits behind a taken lock ends when it is to get the lock: as in TestAWaiterEndsWhenItIsServed. The taken lock is the first of its cohort, so
// the release must name the ended call.
// Proves: trap kept key
func TestAWaiterEndsWhenATakenLockIsServed(t *testing.T) {
	for moment := range 10 {
		keepers(t, func(t *testing.T, a, b *rig) {
			s, o := a.explicitSession(), a.explicitSession()
			a.keeps(s, "k")
			g := a.takes(s, "k")
			a.wait(o, "k", types.WaitForever)
			a.clk.atRead(moment, func() { a.unlessLocked(o, func() { o.End(types.EndDropped) }) })
			a.release(s, g)
			a.clk.next.Store(nil)
			o.End(types.EndDropped)
			time.Sleep(time.Second)
			if l := a.has("k"); l.Held {
				t.Errorf("moment %d: held by nobody: %+v", moment, l)
			}
			b.ask(context.Background(), b.eitherSession(), types.Request{Key: "k"}).gets(t)
		})
	}
}

// The wait of a call ends while the key that its own sidecar keeps is given up. It is never told that the key is held.
// Proves: trap kept key
func TestAWaitEndsDuringAGiveUp(t *testing.T) {
	for name, late := range map[string]time.Duration{"soon": time.Second, "unknown": time.Minute} {
		t.Run(name, func(t *testing.T) {
			for what, group := range map[string]bool{"one": false, "group": true} {
				t.Run(what, func(t *testing.T) {
					keepers(t, func(t *testing.T, a, _ *rig) {
						s := a.explicitSession()
						a.keeps(s, "k")
						carryOut := a.st.hold("Release")
						req := types.Request{Key: "k", TTL: time.Minute, Wait: 50 * time.Millisecond}
						done := make(chan error, 1)
						go func() {
							var err error
							if group {
								_, err = a.m.AcquireAll(context.Background(), s, []string{"k", "l"}, req)
							} else {
								_, err = a.m.Acquire(context.Background(), s, req)
							}
							done <- err
						}()
						time.Sleep(late)
						carryOut()
						err := <-done
						if late == time.Second && err != nil || late > time.Second && !store.Unavailable(err) {
							t.Errorf("got %v", err)
						}
						if e, ok := errors.AsType[*types.TimeoutError](err); ok {
							t.Errorf("refused by %+v", e.Lock)
						}
					})
				})
			}
		})
	}
}

// Asks that want to keep their keys get none. The store is told soon that nothing is kept.
func TestTheStoreIsToldThatNothingIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newRig(t, keeping)
		a.st.hears(false)
		told := make(chan bool, 100)
		a.st.onKeeping = func(on bool) { told <- on }
		s := a.explicitSession()
		a.uses(s, "k", attempt.LeastUses+1)
		synctest.Wait()
		if len(told) != 1 || !<-told {
			t.Fatal("not told")
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(told) != 1 || <-told {
			t.Error("the store hears for nobody")
		}
	})
}

// A wait ended in vain, and the key came to be kept here before the refusal is written. The refusal does not say that its own sidecar keeps the key.
// Proves: trap kept key
func TestARefusalNamesNoOwnKeptKey(t *testing.T) {
	keepers(t, func(t *testing.T, a, _ *rig) {
		a.keeps(a.eitherSession(), "k")
		e := &types.TimeoutError{Lock: store.Lock{Key: "k"}, Age: time.Second}
		a.m.nameHolder(&types.Request{Key: "k"}, e)
		if e.Lock.Kept || e.Lock.Held {
			t.Errorf("held by nobody: %+v", e.Lock)
		}
	})
}
