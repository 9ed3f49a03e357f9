package storetest

import (
	"context"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/store"
)

// Proves: promise 6
func lifecycleCases() []testCase {
	return []testCase{
		{"not ready before Start", func(f *fixture) {
			in := f.unstarted(f.namespace, "a")
			if in.Ready() == nil {
				f.Fatal("Ready is nil before Start")
			}
		}},
		{"Stop is safe before Start and more than once", func(f *fixture) {
			in := f.unstarted(f.namespace, "a")
			in.Stop()
			in.Stop()
			in = f.instance("b")
			in.Stop()
			in.Stop()
		}},
		{"operations after Stop fail and do nothing", operationsAfterStop},
		{"a call with an ended context fails, and can be withdrawn", endedContext},
		{"an instance has one view in a space", oneView},
		{"locks outlive an instance that only stopped", func(f *fixture) {
			a, b := f.pair()
			grant := a.granted(a.ask("k"))
			a.Stop()
			b.holds("k", grant.Token, 0)
			b.want(b.acquire(b.ask("k")), store.Held)
		}},
	}
}

func operationsAfterStop(f *fixture) {
	a, b := f.pair()
	ask := a.ask("k")
	a.Stop()
	if a.Ready() == nil {
		f.Error("Ready is nil after Stop")
	}
	ctx := f.ctx()
	attempts := []store.Attempt{ask.Attempt}
	claims := []store.Claim{claim(ask, 1)}
	calls := map[string]func() error{
		"OpenLeases": func() error {
			return a.OpenLeases(ctx, []store.NewLease{{ID: uuid.New(), TTL: longTTL}})
		},
		"Renew":        func() error { _, err := a.Renew(ctx, []store.LeaseID{a.lease}); return err },
		"Revoke":       func() error { return a.Revoke(ctx, []store.LeaseID{a.lease}) },
		"ReapInstance": func() error { return a.ReapInstance(ctx, b.id.Instance) },
		"Sweep":        func() error { return a.Sweep(ctx) },
		"Acquire":      func() error { _, err := a.Acquire(ctx, []store.Ask{ask}); return err },
		"Enqueue":      func() error { _, err := a.Enqueue(ctx, []store.Ask{ask}); return err },
		"Check":        func() error { _, err := a.Check(ctx, attempts); return err },
		"Cancel":       func() error { _, err := a.Cancel(ctx, attempts); return err },
		"Withdraw":     func() error { _, err := a.Withdraw(ctx, attempts); return err },
		"Release":      func() error { _, err := a.Release(ctx, claims); return err },
		"Amend":        func() error { _, err := a.Amend(ctx, []store.Change{{Key: "k", Token: 1}}); return err },
		"Downgrade":    func() error { _, err := a.Downgrade(ctx, []store.Change{{Key: "k", Token: 1}}); return err },
		"Adopt": func() error {
			adoption := store.Adoption{Change: store.Change{Key: "k", Token: 1, Lease: a.lease}, Served: []store.AttemptID{ask.ID}}
			_, err := a.Adopt(ctx, []store.Adoption{adoption})
			return err
		},
		"Get":       func() error { _, err := a.Get(ctx, []string{"k"}); return err },
		"Signal":    func() error { _, err := a.Signal(ctx, []store.Signal{{Kind: store.Stop, Key: "k"}}); return err },
		"Signals":   func() error { _, err := a.Signals(ctx, []store.LeaseID{a.lease}); return err },
		"HeldUnder": func() error { _, err := a.HeldUnder(ctx, []string{"k"}); return err },
		"Move": func() error {
			_, err := a.Move(ctx, a.lease, a.lease, []store.Move{{Attempt: ask.Attempt}})
			return err
		},
		"Heard":   func() error { return a.Acknowledge(ctx, []store.SignalID{1}) },
		"Watch":   func() error { return a.Watch(ctx, []string{"k"}, a.lease) },
		"Unwatch": func() error { return a.Unwatch(ctx, []string{"k"}) },
		"List":    func() error { _, err := a.List(ctx, store.Query{Limit: 1}); return err },
	}
	for name, call := range calls {
		err := call()
		if !store.Unavailable(err) || store.OutcomeUnknown(err) {
			f.Errorf("%s after Stop: %v; want a store.Error with a known outcome", name, err)
		}
	}
	b.free("k")
}

// oneView starts an instance once more in the same space. If instances are in different spaces, in turn, the first ones are in others, which cannot
// know of it.
func oneView(f *fixture) {
	a := f.instance("a")
	grant := a.granted(a.ask("k"))
	again := func() error {
		twin := f.backend.Open(a.id)
		err := twin.Start(f.ctx(), nil)
		if twin.Stop(); err != nil && twin.Ready() == nil {
			f.Error("a view that did not start is ready")
		}
		return err
	}
	var refused error
	for range mostSpaces {
		if err := again(); err != nil {
			refused = err
		}
	}
	if refused == nil || !strings.Contains(refused.Error(), a.id.Instance) || !strings.Contains(refused.Error(), "has a view") {
		f.Fatalf("a second view of an instance: %v", refused)
	}
	a.holds("k", grant.Token, 0)
	if alive := a.renew(a.lease); len(alive) != 1 {
		f.Error("the first view cannot renew its lease any more")
	}
	a.Stop()
	if err := again(); err != nil {
		f.Errorf("a view after the end of the first one: %v", err)
	}
}

func endedContext(f *fixture) {
	a, b := f.pair()
	ended, cancel := context.WithCancel(f.Context())
	cancel()
	ask := a.ask("k")
	_, err := a.Acquire(ended, []store.Ask{ask})
	if !store.Unavailable(err) {
		f.Fatalf("Acquire with an ended context: %v; want a store.Error", err)
	}
	if store.OutcomeUnknown(err) {
		a.withdraw(ask)
	}
	b.granted(b.ask("k"))
}

// Proves: promise 2
func leaseCases() []testCase {
	return []testCase{
		{"a lease that is renewed outlives its TTL", renewedLeaseLives},
		{"Renew returns only the living leases", func(f *fixture) {
			in := f.instance("a")
			first, reaped, last := in.openLease(longTTL), in.openLease(longTTL), in.openLease(longTTL)
			in.revoke(reaped)
			alive := in.renew(first, reaped, uuid.New(), last)
			got := map[store.LeaseID]bool{}
			for _, id := range alive {
				got[id] = true
			}
			if len(alive) != 2 || !got[first] || !got[last] {
				f.Fatalf("renewed %v, want %v and %v", alive, first, last)
			}
		}},
		{"an expired lease is never revived", func(f *fixture) {
			in := f.instance("a")
			lease := in.openLease(shortTTL)
			in.awaitExpiry(lease, shortTTL)
			if alive := in.renew(lease, in.lease); len(alive) != 1 || alive[0] != in.lease {
				f.Fatalf("renewed %v, want only the living %v", alive, in.lease)
			}
			in.want(in.acquire(in.askUnder(lease, "k")), store.LeaseLost)
		}},
		{"a reaped lease is never revived", func(f *fixture) {
			in := f.instance("a")
			lease := in.openLease(longTTL)
			in.revoke(lease)
			if alive := in.renew(lease); len(alive) != 0 {
				f.Fatal("a reaped lease was renewed")
			}
			in.want(in.acquire(in.askUnder(lease, "k")), store.LeaseLost)
			in.free("k")
		}},
		{"an unknown lease grants nothing", func(f *fixture) {
			in := f.instance("a")
			in.want(in.acquire(in.askUnder(uuid.New(), "k")), store.LeaseLost)
			in.want(in.enqueue(in.askUnder(uuid.New(), "k")), store.LeaseLost)
			in.free("k")
		}},
		{"a dead lease has no queue position", func(f *fixture) {
			a, b := f.pair()
			grant := a.granted(a.ask("k"))
			lease := b.openLease(longTTL)
			b.revoke(lease)
			b.want(b.enqueue(b.askUnder(lease, "k")), store.LeaseLost)
			bindTTL := b.askUnder(lease, "k")
			bindTTL.TTL = longTTL
			b.want(b.enqueue(bindTTL), store.LeaseLost)
			b.holds("k", grant.Token, 0)
		}},
		{"a renewal of a lease extends its locks", func(f *fixture) {
			in := f.instance("a")
			in.granted(in.ask("k"))
			before := in.get("k").Holder.ExpiresIn
			in.poll("less remaining time", func() bool {
				return in.get("k").Holder.ExpiresIn < before-pause
			})
			low := in.get("k").Holder.ExpiresIn
			in.poll("more remaining time", func() bool { // polls, because the machine may be slow
				in.renew(in.lease)
				after := in.get("k").Holder.ExpiresIn
				if after > longTTL {
					f.Fatalf("remaining time of %v after a renewal of %v", after, longTTL)
				}
				return after > low
			})
		}},
	}
}

// renewedLeaseLives renews a short lease for longer than its TTL. If the machine paused for too
// long between two renewals, the test starts again.
func renewedLeaseLives(f *fixture) {
	in := f.instance("a")
	in.poll("a lease renewed in time for longer than its TTL", func() bool {
		opened := time.Now()
		lease := in.openLease(shortTTL)
		for last := opened; time.Since(opened) < shortTTL*3/2; {
			time.Sleep(pause) // between two renewals
			asked := time.Now()
			alive := in.renew(lease)
			late := time.Since(last) > shortTTL/2
			if len(alive) == 0 && !late {
				f.Fatal("a lease expired although it was renewed in time")
			}
			if late {
				return false
			}
			last = asked
		}
		return true
	})
}
