package cas_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/cas"
	"github.com/locksidecar/locksidecar/store/cas/fake"
)

// lockedLater is a backend whose records another session keeps locked after a few more swaps.
type lockedLater struct {
	*polling
	swaps int
}

func (l *lockedLater) Swap(ctx context.Context, swaps []cas.Swap) ([]cas.Swapped, error) {
	l.locked.Store(l.swaps <= 0)
	l.swaps--
	return l.polling.Swap(ctx, swaps)
}

// TestLettersThatALockedRecordKeepsBackAreLogged: the letters that did not go with a swap need a further one. If the record is locked
// then, nobody is told, and a warning says so.
func TestLettersThatALockedRecordKeepsBackAreLogged(t *testing.T) {
	server := fake.NewServer()
	waiting, _, under := startPolling(t, server, "b")
	var log bytes.Buffer
	l := &lockedLater{&polling{Backend: server.Open("a", fake.Faults{})}, 2}
	s := cas.NewSpace(fake.Only(l), cas.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))}).View(store.Identity{Namespace: "n", Instance: "a"})
	defer s.Stop()
	if err := s.Start(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	lease := uuid.New()
	if err := s.OpenLeases(t.Context(), []store.NewLease{{ID: lease, TTL: time.Minute}}); err != nil {
		t.Fatal(err)
	}
	held, err := s.Acquire(t.Context(), []store.Ask{{Attempt: store.Attempt{Key: "k", ID: uuid.New()}, Lease: lease}})
	if err != nil {
		t.Fatal(err)
	}
	asks := make([]store.Ask, 100) // more than a letter has notes
	for i := range asks {
		asks[i] = store.Ask{Attempt: store.Attempt{Key: "k", ID: uuid.New()}, Lease: under, Skip: true}
	}
	if _, err := waiting.Enqueue(t.Context(), asks); err != nil {
		t.Fatal(err)
	}
	l.swaps = 2 // the first one finds that the record has changed
	verdicts, err := s.Release(t.Context(), []store.Claim{{Key: "k", Token: held[0].Token, Lease: lease, Outcome: store.Success}})
	if err != nil || verdicts[0].Status != store.Holds {
		t.Fatalf("%+v, %v", verdicts, err)
	}
	if l.swaps >= 0 {
		t.Errorf("%d more swaps before the record is locked", l.swaps)
	}
	if !strings.Contains(log.String(), "some instances were not told") {
		t.Errorf("no warning: %q", log.String())
	}
}

// usedMeanwhile is a backend at which a deletion finds the record locked by another session, which uses the key again.
type usedMeanwhile struct {
	*polling
	use func()
}

func (u *usedMeanwhile) Swap(ctx context.Context, swaps []cas.Swap) ([]cas.Swapped, error) {
	if use := u.use; use != nil && swaps[0].Delete {
		u.use = nil
		use()
		u.locked.Store(true)
		defer u.locked.Store(false)
	}
	return u.polling.Swap(ctx, swaps)
}

// TestASweepDeletesNoRecordThatIsUsedAgain: the swap that uses a free key again may keep the record locked when the sweep deletes it.
// If the sweep then deleted the record that it finds afterwards, the next asker would be a second holder.
// Proves: trap clock before the wait
func TestASweepDeletesNoRecordThatIsUsedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := fake.NewServer()
		b := start(t, server, store.Identity{Namespace: "n", Instance: "b", Pod: "p"}, cas.Config{})
		u := &usedMeanwhile{polling: &polling{Backend: server.Open("a", fake.Faults{})}}
		s := cas.NewSpace(fake.Only(u), cas.Config{}).View(store.Identity{Namespace: "n", Instance: "a"}).(*cas.Store)
		defer s.Stop()
		b.ok(s.Start(t.Context(), nil))
		before := b.ask("k")
		b.releases(before, b.gets(before, store.Granted), store.Holds)
		b.ok(s.Sweep(t.Context()))
		time.Sleep(10 * time.Minute)
		again, other := b.ask("k"), b.ask("k")
		var grant store.Answer
		u.use = func() { grant = b.gets(again, store.Granted) }
		b.ok(s.Sweep(t.Context()))
		if u.use != nil {
			t.Fatal("the sweep deleted nothing")
		}
		b.tries(other, store.Held)
		b.releases(again, grant, store.Holds)
	})
}
