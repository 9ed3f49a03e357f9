package lease

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

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
