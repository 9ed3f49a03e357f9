package cas_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
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
	s := cas.New(cas.Config{
		Backend: l, Identity: store.Identity{Namespace: "n", Instance: "a"}, Logger: slog.New(slog.NewTextHandler(&log, nil)),
	})
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
		asks[i] = store.Ask{Attempt: store.Attempt{Key: "k", ID: uuid.New()}, Lease: under, Wait: true, Skip: true}
	}
	if _, err := waiting.Acquire(t.Context(), asks); err != nil {
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
