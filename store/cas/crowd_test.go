package cas_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/cas"
	"github.com/locksidecar/locksidecar/store/cas/fake"
)

// crowd starts instances on one server.
func crowd(t *testing.T, n int, test func(server *fake.Server, all []*instance)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		server := fake.NewServer()
		var all []*instance
		for i := range n {
			all = append(all, start(t, server, store.Identity{Namespace: "n", Instance: fmt.Sprint("i", i), Pod: "p"}, cas.Config{}))
		}
		test(server, all)
	})
}

// many is more than a swap may have letters and conditions about leases.
const many = 2*60 + 10

func TestASemaphoreOfManyInstances(t *testing.T) {
	crowd(t, many, func(_ *fake.Server, all []*instance) {
		var asks []store.Ask
		var grants []store.Answer
		slots := map[int]bool{}
		for _, in := range all {
			ask := in.ask("k")
			ask.Shared, ask.Limit = true, many
			got := in.gets(ask, store.Granted)
			asks, grants, slots[got.Slot] = append(asks, ask), append(grants, got), true
		}
		if len(slots) != many {
			t.Errorf("%d slots", len(slots))
		}
		waiter := all[0].ask("k")
		all[0].gets(waiter, store.Queued)
		statuses, err := all[0].Signal(all[0].Context(), []store.Signal{{Key: "k", Kind: store.Stop}})
		if all[0].ok(err); statuses[0] != store.Holds {
			t.Errorf("status %d", statuses[0])
		}
		for i, in := range all {
			if news := in.told(); len(news) != 1 || !news[0].Signals {
				t.Fatalf("instance %d is told %+v, want signals", i, news)
			}
			signals, err := in.Signals(all[0].Context(), []store.LeaseID{in.lease})
			if in.ok(err); len(signals) != 1 || signals[0].Token != grants[i].Token {
				t.Fatalf("instance %d: %+v", i, signals)
			}
		}
		for i, in := range all {
			in.releases(asks[i], grants[i], store.Holds)
		}
		all[0].gets(waiter, store.Granted)
	})
}

func TestManyInstancesAreHandedShares(t *testing.T) {
	crowd(t, many, func(_ *fake.Server, all []*instance) {
		holder := all[0].ask("k")
		grant := all[0].gets(holder, store.Granted)
		var asks []store.Ask
		for _, in := range all {
			ask := in.ask("k")
			ask.Shared = true
			in.gets(ask, store.Queued)
			asks = append(asks, ask)
			in.ok(in.Watch(all[0].Context(), []string{"k"}, in.lease))
		}
		all[0].releases(holder, grant, store.Holds)
		for i, in := range all {
			var told store.Answer
			last, events := grant.Token, 0
			for _, n := range in.told() {
				if n.ID == asks[i].ID {
					told = n.Answer
				}
				if n.Event != nil && n.Event.Kind == store.EventAcquired {
					if n.Event.Token <= last {
						t.Errorf("an event with token %d after %d", n.Event.Token, last)
					}
					last = n.Event.Token
					events++
				}
			}
			if got := in.gets(asks[i], store.Granted); told.Token != got.Token || events != many {
				t.Fatalf("instance %d is told %d events and token %d, it has %d", i, events, told.Token, got.Token)
			}
		}
	})
}

func TestALargeResultReachesManyWaiters(t *testing.T) {
	pair(t, cas.Config{}, func(server *fake.Server, a, b *instance) {
		holder := a.ask("k")
		grant := a.gets(holder, store.Granted)
		var asks []store.Ask
		for range 500 {
			ask := b.ask("k")
			ask.Skip = true
			b.gets(ask, store.Queued)
			asks = append(asks, ask)
		}
		result := `"` + strings.Repeat("x", 4<<10-2) + `"`
		verdicts, err := a.Release(a.Context(), []store.Claim{{Key: "k", Token: grant.Token, Lease: a.lease, Outcome: store.Success, Result: []byte(result)}})
		if a.ok(err); verdicts[0].Status != store.Holds {
			t.Fatalf("released: %+v", verdicts)
		}
		if _, size := server.Records(); size > 200<<10 {
			t.Errorf("%d bytes", size)
		}
		for _, ask := range asks {
			if got := b.gets(ask, store.Skipped); string(got.Result) != result {
				t.Fatalf("result of %d bytes", len(got.Result))
			}
		}
	})
}

// TestLargeResultsReachManyInstances: the letters of one release are larger than a request may be.
func TestLargeResultsReachManyInstances(t *testing.T) {
	crowd(t, 20, func(_ *fake.Server, all []*instance) {
		a := all[0]
		holder := a.ask("k")
		grant := a.gets(holder, store.Granted)
		for range 25 {
			for _, in := range all {
				ask := in.ask("k")
				ask.Skip = true
				in.gets(ask, store.Queued)
			}
		}
		c := store.Claim{Key: "k", Token: grant.Token, Lease: a.lease, Outcome: store.Success}
		c.Result = []byte(`"` + strings.Repeat("x", 4<<10-2) + `"`)
		verdicts, err := a.Release(a.Context(), []store.Claim{c})
		if a.ok(err); verdicts[0].Status != store.Holds {
			t.Fatalf("released: %+v", verdicts)
		}
		for i, in := range all {
			if news := in.told(); len(news) != 25 || !bytes.Equal(news[24].Answer.Result, c.Result) {
				t.Errorf("instance %d is told %d news", i, len(news))
			}
		}
	})
}

func TestAFullRecordKeepsItsWaiters(t *testing.T) {
	pair(t, cas.Config{}, func(_ *fake.Server, a, b *instance) {
		holder := a.ask("k")
		grant := a.gets(holder, store.Granted)
		var asks []store.Ask
		for full := false; !full; {
			ask := b.ask("k")
			ask.Data = []byte(`"` + strings.Repeat("x", 4<<10-2) + `"`)
			answers, err := b.Enqueue(b.Context(), []store.Ask{ask})
			b.ok(err)
			full = answers[0].Outcome == store.QueueFull
			asks = append(asks, ask)
		}
		refused, waits := asks[len(asks)-1], asks[0]
		answers, err := b.Enqueue(b.Context(), []store.Ask{waits, refused})
		if b.ok(err); answers[0].Outcome != store.Queued || answers[1].Outcome != store.QueueFull || answers[1].Lock.Token != grant.Token {
			t.Errorf("outcomes %d and %d", answers[0].Outcome, answers[1].Outcome)
		}
		a.releases(holder, grant, store.Holds)
		b.gets(waits, store.Granted)
	})
}
