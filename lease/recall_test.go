package lease

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/keep"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// These tests are about a sidecar that meets a key that another one keeps. keep_test.go has their helpers.

// A watch that was carried out, but not confirmed, is ended. So the key can be kept again, although the lease of the watch lives on.
// Proves: trap kept key
func TestAWatchOfUnknownOutcomeEnds(t *testing.T) {
	for name, f := range map[string]fault{"carried out": {times: 1, forget: true}, "late": {times: 1, lose: true, late: 9 * time.Second}} {
		t.Run(name, func(t *testing.T) {
			keepers(t, func(t *testing.T, a, b *rig) {
				b.lock(b.explicitSession(), "own")
				b.st.set("Watch", f)
				if _, _, err := b.m.Watch(context.Background(), nil, "k", func(Event) {}); !store.OutcomeUnknown(err) {
					t.Fatal(err)
				}
				time.Sleep(time.Minute)
				a.keeps(a.eitherSession(), "k")
				if watches, ends := b.st.count("Watch"), b.st.count("Unwatch"); watches != 1 || ends != 1 {
					t.Errorf("%d watches, %d ends", watches, ends)
				}
			})
		})
	}
}

// A request to stop comes from a sidecar that takes long to begin a watch, which is the recall. The keeper has its whole time from then on, so the
// request is not judged by what the store knew before.
// Proves: promise 17, trap recall
func TestARequestToStopGivesTheKeeperItsTime(t *testing.T) {
	watchTakes := fault{before: 3 * recallLimit / 2}
	t.Run("a later holder", func(t *testing.T) {
		keepers(t, func(t *testing.T, a, b *rig) {
			s := a.explicitSession()
			was := a.keeps(s, "k")
			b.st.set("Watch", watchTakes)
			asked := make(chan error, 1)
			go func() { asked <- b.m.AskToStop(context.Background(), "k", was.Token, nil) }()
			for len(asked) == 0 { // each hold is too short to be told to the store
				g := a.lock(s, "k")
				time.Sleep(soon)
				a.release(s, g)
				synctest.Wait()
			}
			if err := <-asked; !types.Is[*types.NotHeldError](err) {
				t.Errorf("got %v", err)
			}
			time.Sleep(2 * a.m.cfg.RenewInterval)
			if told := a.stops(); len(told) > 0 {
				t.Errorf("a later holder was asked to stop: %+v", told)
			}
		})
	})
	t.Run("nobody", func(t *testing.T) {
		keepers(t, func(t *testing.T, a, b *rig) {
			a.keeps(a.explicitSession(), "k")
			b.st.set("Watch", watchTakes)
			if err := b.m.AskToStop(context.Background(), "k", 0, nil); !types.Is[*types.NotHeldError](err) {
				t.Errorf("got %v", err)
			}
		})
	})
	t.Run("no watch", func(t *testing.T) {
		keepers(t, func(t *testing.T, a, b *rig) {
			a.keeps(a.explicitSession(), "k")
			b.st.set("Watch", fault{refuse: true})
			if err := b.m.AskToStop(context.Background(), "k", 0, nil); !store.Unavailable(err) {
				t.Errorf("got %v", err)
			}
			time.Sleep(time.Second)
			b.st.lift("Watch")
			if err := b.m.AskToStop(context.Background(), "k", 0, nil); !types.Is[*types.NotHeldError](err) {
				t.Errorf("got %v", err)
			}
		})
	})
}

// A call that does not wait, and meets a key that another sidecar keeps, is answered within the patience, counted from the call, as all such calls: also if each
// statement takes nearly its whole time. It is denied then: it asked, and the key was taken.
// Proves: promise 9, trap recall
func TestATryForAKeptKeyIsAnsweredInTime(t *testing.T) {
	const timeout = time.Second
	for _, takes := range []time.Duration{9 * timeout / 10, 4 * timeout / 10} {
		for name, call := range map[string]func(b *rig) error{
			"one": func(b *rig) error { _, err := b.try(b.eitherSession(), "k"); return err },
			"ttl": func(b *rig) error {
				_, err := b.m.Acquire(context.Background(), nil, types.Request{Key: "k", Bind: types.BindTTL, TTL: time.Minute, NoCache: true})
				return err
			},
			"several": func(b *rig) error {
				_, err := b.m.AcquireAll(context.Background(), b.eitherSession(), []string{"j", "k", "l"}, types.Request{})
				return err
			},
		} {
			t.Run(fmt.Sprint(name, " ", takes), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					short := with(func(c *types.Config) { c.StoreTimeout = timeout })
					a := newRig(t, keeping, short)
					b := a.another(keeping, short)
					b.lock(b.explicitSession(), "own") // opens the lease
					a.mayKeep(a.explicitSession(), "k")
					a.st.losesRecalls(true)
					b.st.setAll(fault{before: takes})
					b.st.lift("Renew")
					began := time.Now()
					err := call(b)
					if d := time.Since(began); d > types.Patience(timeout) || !types.Is[*types.HeldError](err) {
						t.Errorf("after %v: %v", d, err)
					}
					b.st.lift(everyOp...)
				})
			})
		}
	}
}

// A call that does not wait, and is queued to recall a key, does not wait until its store receives news. A call that waits does.
// Proves: trap recall
func TestARecallNeedsNoNews(t *testing.T) {
	for wait, needs := range map[time.Duration]bool{0: false, time.Second: true} {
		keepers(t, func(t *testing.T, a, b *rig) {
			a.keeps(a.eitherSession(), "k")
			b.ask(context.Background(), b.eitherSession(), types.Request{Key: "k", Wait: wait}).gets(t)
			if asks := b.st.enqueued; len(asks) != 1 || asks[0].NoNews == needs {
				t.Errorf("wait %v: queued as %+v", wait, asks)
			}
		})
	}
}

// For a minute no recalls were heard, so nothing was kept. When they are heard again, a sidecar of few pairs keeps its keys again before long.
// Proves: rule cost
func TestHearingIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newRig(t, keeping)
		a.st.hears(false)
		var broken atomic.Bool
		broken.Store(true)
		a.st.onKeeping = func(on bool) { a.st.hears(on && !broken.Load()) }
		s := a.explicitSession()
		uses := func(d time.Duration) {
			for range d / (300 * time.Millisecond) {
				a.uses(s, "k", 1)
				time.Sleep(100 * time.Millisecond)
				a.uses(s, "k", 1) // within KEEP
				time.Sleep(200 * time.Millisecond)
			}
		}
		uses(time.Minute)
		broken.Store(false)
		uses(3 * time.Minute)
		if a.counts.keptGrants == 0 {
			t.Error("no key was kept since")
		}
	})
}

// A store hears for another reason, and would check its connection more often for keys that are taken too rarely for that to pay. It is told of them more and
// more seldom.
// Proves: rule cost
func TestAStoreThatHearsIsNotToldForRareUses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newRig(t, keeping)
		var told atomic.Int64
		a.st.onKeeping = func(on bool) {
			if on {
				told.Add(1)
			}
		}
		s := a.explicitSession()
		for range 120 { // ten minutes
			a.uses(s, "k", 3)
			time.Sleep(5 * time.Second)
		}
		if n := told.Load(); n > 5 {
			t.Errorf("told %d times in ten minutes", n)
		}
		for range 300 { // now it pays
			a.uses(s, "k", 10)
			time.Sleep(100 * time.Millisecond)
		}
		if a.m.acquirer.KeptKeys() != 1 {
			t.Error("the key is not kept, though it is used often")
		}
	})
}

// If to hear recalls costs the store nothing, keys are kept also if that saves little.
func TestRareUsesOfAStoreThatHearsAlways(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newRig(t, keeping, func(_ *types.Config, tr *store.Traits) { tr.HearsAlways = true })
		a.st.onKeeping = func(bool) { t.Error("the store is told that keys are kept") }
		s := a.explicitSession()
		for range 10 {
			a.keeps(s, "k")
			time.Sleep(time.Minute)
		}
	})
}

// A keeper is dead, and its key stays kept until its lease ends. Once it should have given the key up, tries are refused from the cache, as for every held key.
// As long as it may answer, none is, because the key may become free at any time.
// Proves: rule cost, promise 18
func TestTriesForTheKeyOfADeadKeeper(t *testing.T) {
	keepers(t, func(t *testing.T, a, b *rig) {
		a.keeps(a.eitherSession(), "k")
		a.st.losesRecalls(true)
		free := a.st.hold("Release")
		s := b.eitherSession()
		try := func() error {
			_, err := b.m.Acquire(context.Background(), s, types.Request{Key: "k"})
			return err
		}
		time.Sleep(keep.MaxAge)
		before := b.st.count("Acquire")
		for range 5 {
			if err := try(); !types.Is[*types.HeldError](err) {
				t.Fatal(err)
			}
		}
		if n := b.st.count("Acquire") - before; n != 5 {
			t.Errorf("%d asks: a denial by a key that may become free is remembered", n)
		}
		time.Sleep(2 * time.Second)
		before = b.st.total()
		for began := time.Now(); time.Since(began) < time.Second; time.Sleep(time.Millisecond) {
			if err := try(); !types.Is[*types.HeldError](err) {
				t.Fatal(err)
			}
		}
		if n := b.st.total() - before; n > 40 { // an ask, an enqueue and a cancel for each CACHE_TTL
			t.Errorf("%d statements in a second", n)
		}
		free()
		for b.has("k").Held {
			time.Sleep(time.Millisecond)
		}
		time.Sleep(b.m.cfg.CacheTTL)
		if err := try(); err != nil {
			t.Errorf("the key is free: %v", err)
		}
	})
}
