package storetest

import (
	"cmp"
	"slices"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/store"
)

func reconcileCases() []testCase {
	return []testCase{
		{"HeldUnder names what is held under leases, and who stands in line under them", heldUnderLeases},
		{"what was released, taken over or cancelled is held under nothing", func(f *fixture) {
			a, b := f.pair()
			released, cancelled, handed := a.ask("released"), a.ask("k"), a.ask("handed")
			a.released(claim(released, a.granted(released).Token))
			b.granted(b.ask("k"))
			a.queued(cancelled, 1)
			a.want(a.cancel(cancelled), store.Gone)
			token := a.granted(handed).Token
			waiter := b.ask("handed")
			b.queued(waiter, 1)
			a.released(claim(handed, token))
			b.awaitNews(waiter)
			a.hasHeldUnder([]store.LeaseID{a.lease})
		}},
		{"leases that nothing is held under, or that are dead, holds nothing", func(f *fixture) {
			a := f.instance("a")
			ask := a.ask("k")
			a.granted(ask)
			a.revoke(a.lease)
			a.hasHeldUnder([]store.LeaseID{a.openLease(longTTL), uuid.New()})
			a.hasHeldUnder(nil)
		}},
		{"a store that forgot nothing wants nothing counted, and hears that it was", func(f *fixture) {
			a := f.instance("a")
			renewal, err := a.Renew(a.ctx(), []store.LeaseID{a.lease})
			if err != nil || len(renewal.Kept) != 1 || len(renewal.Reconcile) != 0 {
				f.Fatalf("%+v, %v", renewal, err)
			}
			if count := a.hasHeldUnder([]store.LeaseID{a.lease}); count.History != renewal.History {
				f.Errorf("renewed in the history %s, counted in %s", renewal.History, count.History)
			}
			if err := a.Reconciled(a.ctx(), []store.LeaseID{a.lease, uuid.New()}, renewal.History); err != nil {
				f.Error(err)
			}
		}},
	}
}

func heldUnderLeases(f *fixture) {
	a, b := f.pair()
	second := a.openLease(longTTL)
	one, two, other, waiter := a.ask("one"), a.askUnder(second, "two"), a.askTTL("ttl", longTTL), a.ask("theirs")
	theirs := b.ask("theirs")
	tokens := map[string]int64{"one": a.granted(one).Token, "two": a.granted(two).Token}
	a.granted(other)
	tokens["theirs"] = b.granted(theirs).Token
	a.queued(waiter, 1)
	heldGrant := func(ask store.Ask) store.HeldGrant {
		return store.HeldGrant{Attempt: ask.Attempt, Lease: ask.Lease, Token: tokens[ask.Key]}
	}
	inLine := store.HeldGrant{Attempt: waiter.Attempt, Lease: a.lease, Waiting: true}
	a.hasHeldUnder([]store.LeaseID{a.lease, second}, heldGrant(one), inLine, heldGrant(two))
	a.hasHeldUnder([]store.LeaseID{second}, heldGrant(two))
	b.hasHeldUnder([]store.LeaseID{b.lease}, heldGrant(theirs))
}

// hasRiders checks what is held under leases, in the order of the keys, and that it is the same
// for who asks by the keys.
func (in *instance) hasHeldUnder(leases []store.LeaseID, want ...store.HeldGrant) store.Count {
	in.Helper()
	count := in.heldUnderAfter(leases, "")
	byKey := func(grants []store.HeldGrant) []store.HeldGrant {
		return slices.SortedFunc(slices.Values(grants), func(a, b store.HeldGrant) int { return cmp.Compare(a.Key, b.Key) })
	}
	if found := byKey(count.Grants); !slices.Equal(found, want) {
		in.Fatalf("held\n got %+v\nwant %+v", found, want)
	}
	keys := []string{"unknown"}
	for _, r := range want {
		keys = append(keys, r.Key)
	}
	some, err := in.HeldUnder(in.ctx(), leases, keys)
	if found := byKey(some.Grants); err != nil || !slices.Equal(found, want) {
		in.Fatalf("held under %q: %v\n got %+v\nwant %+v", keys, err, found, want)
	}
	if some, err = in.HeldUnder(in.ctx(), leases, keys[:1]); err != nil || len(some.Grants) > 0 {
		in.Fatalf("held under %q: %+v, %v", keys[:1], some, err)
	}
	return count
}

// ridersAfter returns what is held under leases behind a key, part by part.
func (in *instance) heldUnderAfter(leases []store.LeaseID, after string) (count store.Count) {
	in.Helper()
	in.poll("the last part", func() bool {
		for {
			part, err := in.HeldUnderAfter(in.ctx(), leases, after)
			if err != nil {
				in.Fatalf("HeldUnderAfter %q: %v", after, err)
			}
			count.History, count.Grants = part.History, append(count.Grants, part.Grants...)
			if part.Last || part.Next == after { // others look in this moment
				return part.Last
			}
			after = part.Next
		}
	})
	return count
}
