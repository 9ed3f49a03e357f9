package storetest

import (
	"slices"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/store"
)

// moveCases are about [store.Mover].
// Proves: trap late statement
func moveCases() []testCase {
	return []testCase{
		{"HeldUnder returns only the keys that are held under leases of this instance", heldUnder},
		{"a renewal does not name leases of the current history for a reconciliation", func(f *fixture) {
			a := f.instance("a")
			renewal, err := a.Renew(a.ctx(), []store.LeaseID{a.lease})
			if err != nil || len(renewal.Renewed) != 1 || len(renewal.Reconcile) != 0 {
				f.Fatalf("got %+v, %v", renewal, err)
			}
			if held := a.heldUnder("k"); held.History != renewal.History {
				f.Errorf("renewed in the history %s, read in %s", renewal.History, held.History)
			}
		}},
		{"a moved lock outlives its old lease, with its token", func(f *fixture) {
			a, b := f.pair()
			ask, to := a.ask("k"), a.openLease(longTTL)
			ask.Data = []byte(`1`)
			token := a.granted(ask).Token
			a.moved(a.lease, to, store.Move{Attempt: store.Attempt{Key: "k"}, Token: token}, store.Holds)
			a.revoke(a.lease)
			lock := b.holds("k", token, 0)
			if lock.Holder.Lease != to {
				f.Errorf("held under %s, not %s", lock.Holder.Lease, to)
			}
			f.sameJSON(lock.Holder.Data, `1`)
			a.moved(a.lease, to, store.Move{Attempt: store.Attempt{Key: "k"}, Token: token}, store.Holds) // again
			a.released(claim(ask, token))
			b.free("k")
		}},
		{"a moved lock ends with its new lease", func(f *fixture) {
			a, b := f.pair()
			to, waiter := a.openLease(longTTL), b.ask("k")
			token := a.granted(a.ask("k")).Token
			b.queued(waiter, 1)
			a.moved(a.lease, to, store.Move{Attempt: store.Attempt{Key: "k"}, Token: token}, store.Holds)
			a.revoke(to)
			b.holds("k", b.awaitNews(waiter).Token, 0)
		}},
		{"a session's lock is claimed under any lease of its instance", func(f *fixture) {
			a, b := f.pair()
			ask, to := a.ask("k"), a.openLease(longTTL)
			token := a.granted(ask).Token
			for _, lease := range []store.LeaseID{a.lease, to} {
				a.amended(store.Claim{Key: "k", Token: token, Lease: lease}, store.Change{}, store.Holds)
			}
			theirs, nobodys := store.Claim{Key: "k", Token: token, Lease: b.lease}, store.Claim{Key: "k", Token: token}
			b.stands(b.release(theirs), store.OtherSession)
			a.stands(a.release(nobodys), store.OtherSession)
			a.released(store.Claim{Key: "k", Token: token, Lease: to})
		}},
		{"a moved waiter keeps its position, and gets the lock under the new lease", movedWaiter},
		{"an attempt that was granted before the move is moved with its lock", func(f *fixture) {
			a, b := f.pair()
			holder, waiter, to := b.ask("k"), a.ask("k"), a.openLease(longTTL)
			token := b.granted(holder).Token
			a.queued(waiter, 1)
			b.released(claim(holder, token))
			got := a.awaitNews(waiter)
			a.moved(a.lease, to, store.Move{Attempt: waiter.Attempt}, store.Holds)
			a.revoke(a.lease)
			b.holds("k", got.Token, 0)
		}},
		{"a bind:ttl waiter keeps its position, and its lock keeps its own lease", func(f *fixture) {
			a, b := f.pair()
			holder, to := b.ask("k"), a.openLease(longTTL)
			waiter := a.askTTL("k", longTTL)
			waiter.Lease = a.lease
			token := b.granted(holder).Token
			a.queued(waiter, 1)
			a.moved(a.lease, to, store.Move{Attempt: waiter.Attempt}, store.Holds)
			a.revoke(a.lease)
			b.released(claim(holder, token))
			waiter.Lease = to
			got := a.awaitNews(waiter)
			a.moved(a.lease, to, store.Move{Attempt: waiter.Attempt}, store.OtherSession)
			a.revoke(to)
			b.holds("k", got.Token, 0)
		}},
		{"a skipped waiter is remembered under the new lease", func(f *fixture) {
			a := f.instance("a")
			waiter, to := a.skippedWaiter("k", `{"r":1}`), a.openLease(longTTL)
			a.moved(a.lease, to, store.Move{Attempt: waiter.Attempt}, store.Holds)
			a.revoke(a.lease)
			a.skipped(a.check(waiter), `{"r":1}`)
		}},
		{"signals follow a moved lock", func(f *fixture) {
			a, b := f.pair()
			to := a.openLease(longTTL)
			token := a.granted(a.ask("k")).Token
			b.signalled(stop("k", "enough"), store.Holds)
			a.moved(a.lease, to, store.Move{Attempt: store.Attempt{Key: "k"}, Token: token}, store.Holds)
			a.revoke(a.lease)
			found, err := a.Signals(a.ctx(), []store.LeaseID{to})
			if err != nil || len(found) != 1 || found[0].Key != "k" || found[0].Token != token {
				f.Errorf("signals: %+v, %v", found, err)
			}
		}},
		{"a lock that is not held is not moved", notMoved},
		{"a move that a later move has overtaken does nothing", movedOn},
	}
}

func heldUnder(f *fixture) {
	a, b := f.pair()
	second := a.openLease(longTTL)
	one, two, ttl, theirs, released := a.ask("one"), a.askUnder(second, "two"), a.askTTL("ttl", longTTL), b.ask("theirs"), a.ask("released")
	want := []store.HeldGrant{
		{Key: "one", Token: a.granted(one).Token, Lease: a.lease}, {Key: "two", Token: a.granted(two).Token, Lease: second},
	}
	a.granted(ttl)
	b.granted(theirs)
	a.queued(a.ask("theirs"), 1)
	a.released(claim(released, a.granted(released).Token))
	keys := []string{"one", "ttl", "theirs", "two", "released", "never"}
	if found := a.heldUnder(keys...).Grants; !slices.Equal(found, want) {
		f.Errorf("held\n got %+v\nwant %+v", found, want)
	}
	a.revoke(second)
	if found := a.heldUnder(keys...).Grants; !slices.Equal(found, want[:1]) {
		f.Errorf("held under the living lease: %+v", found)
	}
}

func movedWaiter(f *fixture) {
	a, b := f.pair()
	holder, first, second, to := b.ask("k"), a.ask("k"), b.ask("k"), a.openLease(longTTL)
	token := b.granted(holder).Token
	a.queued(first, 1)
	b.queued(second, 2)
	for range 2 { // the second move finds it moved
		a.moved(a.lease, to, store.Move{Attempt: first.Attempt}, store.Holds)
	}
	a.revoke(a.lease)
	a.want(a.check(first), store.Queued)
	b.released(claim(holder, token))
	first.Lease = to
	got := a.awaitNews(first)
	if lock := b.holds("k", got.Token, 1); lock.Holder.Lease != to {
		f.Errorf("held under %s, not %s", lock.Holder.Lease, to)
	}
	a.released(claim(first, got.Token))
	b.awaitNews(second)
}

func notMoved(f *fixture) {
	a, b := f.pair()
	to, short := a.openLease(longTTL), a.openLease(shortTTL)
	released, theirs, held := a.ask("released"), b.ask("theirs"), a.ask("held")
	token := a.granted(released).Token
	a.released(claim(released, token))
	a.moved(a.lease, to, store.Move{Attempt: released.Attempt, Token: token}, store.Released)
	b.granted(theirs)
	waiter := b.ask("theirs")
	b.queued(waiter, 1)
	a.moved(a.lease, to, store.Move{Attempt: waiter.Attempt}, store.OtherSession)
	a.moved(a.lease, to, store.Move{Attempt: theirs.Attempt}, store.OtherSession)
	a.moved(a.lease, to, store.Move{Attempt: store.Attempt{Key: "never", ID: uuid.New()}, Token: 1}, store.UnknownToken)
	token = a.granted(held).Token
	a.moved(a.lease, to, store.Move{Attempt: store.Attempt{Key: "held", ID: uuid.New()}, Token: token - 1}, store.UnknownToken)
	move := store.Move{Attempt: held.Attempt, Token: token}
	a.moved(a.lease, uuid.New(), move, store.Expired)
	a.awaitExpiry(short, shortTTL)
	a.moved(a.lease, short, move, store.Expired)
	if lock := b.holds("held", token, 0); lock.Holder.Lease != a.lease {
		f.Errorf("held under %s, not %s", lock.Holder.Lease, a.lease)
	}
	dying, grant := a.shortHold("dying")
	a.awaitExpiry(dying.Lease, shortTTL)
	a.moved(dying.Lease, to, store.Move{Attempt: dying.Attempt, Token: grant.Token}, store.Expired)
}

func movedOn(f *fixture) {
	a, b := f.pair()
	holder, waiter, second, third := a.ask("k"), a.ask("theirs"), a.openLease(longTTL), a.openLease(longTTL)
	token, theirs := a.granted(holder).Token, b.ask("theirs")
	free := b.granted(theirs).Token
	a.queued(waiter, 1)
	lock, wait := store.Move{Attempt: store.Attempt{Key: "k"}, Token: token}, store.Move{Attempt: waiter.Attempt}
	for _, m := range []store.Move{lock, wait} {
		a.moved(a.lease, second, m, store.Holds)
		a.moved(second, third, m, store.Holds)
		a.moved(a.lease, second, m, store.OtherSession) // an old move that arrives late
		a.moved(b.lease, second, m, store.OtherSession)
	}
	a.revoke(a.lease)
	a.revoke(second)
	b.holds("k", token, 0)
	b.released(claim(theirs, free))
	waiter.Lease = third
	if got := b.holds("theirs", a.awaitNews(waiter).Token, 0); got.Holder.Lease != third {
		f.Errorf("held under %s, not %s", got.Holder.Lease, third)
	}
}

func (in *instance) heldUnder(keys ...string) store.HeldGrants {
	in.Helper()
	held, err := in.HeldUnder(in.ctx(), keys)
	if err != nil {
		in.Fatal(err)
	}
	slices.SortFunc(held.Grants, func(a, b store.HeldGrant) int { return int(a.Token - b.Token) })
	return held
}

func (in *instance) moved(from, to store.LeaseID, m store.Move, want store.ClaimStatus) {
	in.Helper()
	states, err := in.Move(in.ctx(), from, to, []store.Move{m})
	if err != nil || len(states) != 1 || states[0] != want {
		in.Fatalf("moved %+v: %v, %v; want %v", m, states, err, want)
	}
}
