package storetest

import (
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/store"
)

func signalCases() []testCase {
	return []testCase{
		{"a stop is shown to all instances and sent to the session's instance", stopTold},
		{"a stop of a free key is refused", func(f *fixture) {
			a, b := f.pair()
			ask := a.ask("released")
			a.released(claim(ask, a.granted(ask).Token))
			a.granted(a.ask("reaped"))
			a.granted(a.askTTL("expired", shortTTL))
			a.revoke(a.lease)
			b.poll("the end of the lock", func() bool { return !b.get("expired").Held })
			for _, key := range []string{"never", "released", "reaped", "expired"} {
				for _, kind := range []store.SignalKind{store.Stop, store.Break} {
					b.signalled(store.Signal{Kind: kind, Key: key}, store.UnknownToken)
				}
				if l := b.get(key); l.Stopping != nil {
					f.Errorf("%s is stopping: %+v", key, l)
				}
			}
		}},
		{"a signal with a token is for that grant only", signalWithAToken},
		{"a stop ends with its grant", stopDiesWithItsGrant},
		{"a repeated stop changes only the reason", stopRepeated},
		{"a stop of a bind:ttl lock is stored with the lock", func(f *fixture) {
			a, b := f.pair()
			ask := a.askTTL("k", longTTL)
			token := a.granted(ask).Token
			b.signalled(stop("k", "enough"), store.Holds)
			f.stopping(b.get("k"), "enough")
			f.stopping(a.amended(claim(ask, token), store.Change{}, store.Holds).Lock, "enough")
			a.released(claim(ask, token))
			next := b.granted(b.ask("k")).Token
			if l := a.holds("k", next, 0); l.Stopping != nil {
				f.Errorf("the next holder is stopping: %+v", l)
			}
		}},
		{"a break of a session's lock is sent to its instance, and the lock stays held", breakTold},
		{"a break of a session's lock ends the hold, but not the lease", breakEndsTheHold},
		{"a break of a bind:ttl lock ends the lock at once", func(f *fixture) {
			a, b := f.pair()
			free, contended := a.askTTL("free", longTTL), a.askTTL("contended", longTTL)
			held := a.askTTL("held", longTTL)
			held.MinHold = longHold
			tokens := []int64{a.granted(free).Token, a.granted(contended).Token, a.granted(held).Token}
			waiter := b.ask("contended")
			b.queued(waiter, 1)
			for _, key := range []string{"free", "contended", "held"} {
				b.signalled(store.Signal{Kind: store.Break, Key: key}, store.Holds)
			}
			a.stands(a.release(claim(free, tokens[0])), store.Expired)
			a.amended(claim(free, tokens[0]), store.Change{}, store.Expired)
			b.free("free")
			if got := b.awaitNews(waiter); got.Token <= tokens[1] {
				f.Errorf("tokens %d, then %d", tokens[1], got.Token)
			}
			a.stands(a.release(claim(contended, tokens[1])), store.UnknownToken)
			b.granted(b.ask("held"))
		}},
		{"a break ends a hold whose holder is dead", func(f *fixture) {
			a, b := f.pair()
			released, reaped := a.askHold("released", longTTL, longHold), a.askHold("reaped", longTTL, longHold)
			tokens := []int64{a.granted(released).Token, a.granted(reaped).Token}
			waiter := b.ask("released")
			b.queued(waiter, 1)
			a.released(claim(released, tokens[0]))
			a.revoke(reaped.Lease)
			for _, key := range []string{"released", "reaped"} {
				b.signalled(store.Signal{Kind: store.Break, Key: key}, store.Holds)
			}
			if got := b.awaitNews(waiter); got.Token <= tokens[0] {
				f.Errorf("tokens %d, then %d", tokens[0], got.Token)
			}
			a.stands(a.release(claim(reaped, tokens[1])), store.Expired)
			b.granted(b.ask("reaped"))
		}},
		{"a stop of a hold whose holder is dead is not sent", func(f *fixture) {
			a, b := f.pair()
			ask := a.askHold("k", longTTL, longHold)
			token := a.granted(ask).Token
			a.revoke(ask.Lease)
			b.signalled(stop("k", "why"), store.Holds)
			a.hasSignals(0, ask.Lease)
			b.isOnHold("k", token, 0, longHold)
		}},
		{"a stop ends with the release, also when a hold keeps the key", func(f *fixture) {
			a, b := f.pair()
			ask := a.askHold("k", longTTL, longHold)
			token := a.granted(ask).Token
			b.signalled(stop("k", ""), store.Holds)
			a.released(claim(ask, token))
			b.isOnHold("k", token, 0, longHold)
			if l := b.get("k"); l.Stopping != nil {
				f.Errorf("stopping although it was released: %+v", l)
			}
		}},
		{"signals of dead leases are deleted", func(f *fixture) {
			a, b := f.pair()
			one, other := a.openLease(longTTL), a.openLease(longTTL)
			a.granted(a.askUnder(one, "k1"))
			a.granted(a.askUnder(other, "k2"))
			b.signalled(stop("k1", ""), store.Holds)
			b.signalled(stop("k2", ""), store.Holds)
			a.hasSignals(2, one, other)
			a.revoke(one)
			a.hasSignals(1, one, other)
			a.reapInstance(a.id.Instance)
			a.hasSignals(0, one, other)
		}},
		{"signals in a batch are answered in their order", signalsInABatch},
		{"an acknowledgement of an unknown signal is ignored", func(f *fixture) {
			in := f.instance("a")
			in.hasSignals(0)
			in.hasSignals(0, uuid.New())
			in.forget(1 << 60)
			in.forget()
		}},
	}
}

// stop returns a stop signal. reason may be empty.
func stop(key, reason string) store.Signal {
	s := store.Signal{Kind: store.Stop, Key: key}
	if reason != "" {
		s.Reason = &reason
	}
	return s
}

// signalled sends one signal and checks its status.
func (in *instance) signalled(s store.Signal, want store.ClaimStatus) {
	in.Helper()
	standings, err := in.Signal(in.ctx(), []store.Signal{s})
	if err != nil || len(standings) != 1 {
		in.Fatalf("Signal: %v, %v", standings, err)
	}
	if standings[0] != want {
		in.Fatalf("signal %+v: status %s, want %s", s, standing(standings[0]), standing(want))
	}
}

// hasSignals reads the signals for the holders under leases.
func (in *instance) hasSignals(n int, leases ...store.LeaseID) []store.Signal {
	in.Helper()
	signals, err := in.Signals(in.ctx(), leases)
	if err != nil {
		in.Fatalf("Signals: %v", err)
	}
	if len(signals) != n {
		in.Fatalf("%d signals, want %d: %+v", len(signals), n, signals)
	}
	return signals
}

// forget acknowledges signals.
func (in *instance) forget(ids ...store.SignalID) {
	in.Helper()
	if err := in.Acknowledge(in.ctx(), ids); err != nil {
		in.Fatalf("Acknowledge: %v", err)
	}
}

// awaitSignals waits for the hint that there are signals, if the store sends hints. Before the
// signals are sent, call listens.
func (in *instance) awaitSignals() {
	in.Helper()
	if in.Traits().Polls {
		return
	}
	select {
	case <-in.signals:
	case <-time.After(patience):
		in.Fatal("no news of signals")
	}
}

// listens returns when the instance receives all later news, because a Watch takes effect only
// then.
func (in *instance) listens() {
	in.Helper()
	in.watch(in.lease, "not a key of this test")
}

// renewalSays checks whether a renewal reports signals.
func (in *instance) renewalSays(want bool, leases ...store.LeaseID) {
	in.Helper()
	renewal, err := in.Renew(in.ctx(), leases)
	if err != nil {
		in.Fatalf("Renew: %v", err)
	}
	if len(renewal.Renewed) != len(leases) || renewal.Signals != want {
		in.Fatalf("renewed %+v, want signals %v", renewal, want)
	}
}

// stopping checks that a lock's holder is asked to stop. reason may be empty.
func (f *fixture) stopping(l store.Lock, reason string) *store.Stopping {
	f.Helper()
	if l.Stopping == nil || l.Stopping.At.IsZero() {
		f.Fatalf("not stopping: %+v", l)
	}
	f.sameReason(l.Stopping.Reason, reason)
	return l.Stopping
}

func (f *fixture) sameReason(got *string, want string) {
	f.Helper()
	switch {
	case got == nil && want == "":
	case got == nil || *got != want || want == "":
		f.Fatalf("reason %v, want %q", got, want)
	}
}

func stopTold(f *fixture) {
	a, b := f.pair()
	a.listens()
	lease := a.openLease(longTTL)
	ask := a.askUnder(lease, "k")
	token := a.granted(ask).Token
	if l := b.get("k"); l.Stopping != nil {
		f.Fatalf("stopping before the stop: %+v", l)
	}
	a.renewalSays(false, lease, a.lease)
	b.signalled(stop("k", "a deploy \u2192 \"now\""), store.Holds)
	a.awaitSignals()
	shown := f.stopping(b.holds("k", token, 0), "a deploy \u2192 \"now\"")
	f.stopping(b.lists(store.Query{Limit: 1}, "k")[0], *shown.Reason)
	f.stopping(b.want(b.acquire(b.ask("k")), store.Held).Lock, *shown.Reason)
	f.stopping(b.want(b.enqueue(b.ask("k")), store.Queued).Lock, *shown.Reason)
	f.stopping(a.amended(claim(ask, token), store.Change{}, store.Holds).Lock, *shown.Reason)

	a.renewalSays(true, lease, a.lease)
	a.renewalSays(false, a.lease)
	a.hasSignals(0, a.lease)
	told := a.hasSignals(1, a.lease, lease)[0]
	if told.ID == 0 || told.Kind != store.Stop || told.Key != "k" || told.Token != token || !told.At.Equal(shown.At) {
		f.Errorf("sent %+v, shown %+v", told, shown)
	}
	f.sameReason(told.Reason, *shown.Reason)
	a.hasSignals(1, lease) // again and again
	a.forget(told.ID)
	a.forget(told.ID)
	a.hasSignals(0, lease, a.lease)
	a.renewalSays(false, lease, a.lease)
	f.stopping(b.get("k"), *shown.Reason)
	a.released(claim(ask, token))
}

func signalWithAToken(f *fixture) {
	a, b := f.pair()
	ask := a.ask("k")
	old := a.granted(ask).Token
	a.released(claim(ask, old))
	bindTTL := a.askTTL("t", longTTL)
	before := a.granted(bindTTL).Token
	a.released(claim(bindTTL, before))
	token, other := a.granted(a.ask("k")).Token, a.granted(a.askTTL("t", longTTL)).Token
	for _, kind := range []store.SignalKind{store.Stop, store.Break} {
		for _, wrong := range []int64{old, token + 1, before} {
			b.signalled(store.Signal{Kind: kind, Key: "k", Token: wrong}, store.UnknownToken)
		}
		b.signalled(store.Signal{Kind: kind, Key: "t", Token: before}, store.UnknownToken)
	}
	a.hasSignals(0, a.lease)
	if k, t := b.holds("k", token, 0), b.holds("t", other, 0); k.Stopping != nil || t.Stopping != nil {
		f.Errorf("stopping: %+v\n%+v", k, t)
	}
	b.signalled(store.Signal{Kind: store.Stop, Key: "k", Token: token}, store.Holds)
	f.stopping(b.get("k"), "")
	a.hasSignals(1, a.lease)
	b.signalled(store.Signal{Kind: store.Break, Key: "t", Token: other}, store.Holds)
	b.free("t")
}

// stopDiesWithItsGrant: after every kind of end of a grant, the next holder is not asked to stop,
// even if it is the same session.
func stopDiesWithItsGrant(f *fixture) {
	a, b := f.pair()
	ways := map[string]func(ask store.Ask, token int64){
		"release":  func(ask store.Ask, token int64) { a.released(claim(ask, token)) },
		"withdraw": func(ask store.Ask, _ int64) { a.withdraw(ask) },
		"reap":     func(ask store.Ask, _ int64) { a.revoke(ask.Lease) },
	}
	for how, end := range ways {
		for _, waits := range []bool{false, true} {
			ask, next := a.askUnder(a.openLease(longTTL), how), a.ask(how)
			if how == "release" {
				next.Lease = ask.Lease
			}
			token := a.granted(ask).Token
			if waits {
				a.queued(next, 1)
			}
			b.signalled(stop(how, "x"), store.Holds)
			end(ask, token)
			if l := b.get(how); l.Stopping != nil {
				f.Fatalf("stopping after a %s: %+v", how, l)
			}
			var grant store.Answer
			if waits {
				grant = a.awaitNews(next)
			} else {
				grant = a.granted(next)
			}
			if l := b.holds(how, grant.Token, 0); l.Stopping != nil {
				f.Fatalf("the next holder is stopping after a %s: %+v", how, l)
			}
			a.noSignalFor(grant.Token, ask.Lease, next.Lease)
			a.released(claim(next, grant.Token))
		}
	}
}

// noSignalFor checks that there are no signals for a grant. There may be signals for an earlier
// grant.
func (in *instance) noSignalFor(token int64, leases ...store.LeaseID) {
	in.Helper()
	signals, err := in.Signals(in.ctx(), leases)
	if err != nil {
		in.Fatalf("Signals: %v", err)
	}
	for _, s := range signals {
		if s.Token == token {
			in.Fatalf("a signal for the next holder: %+v", s)
		}
	}
}

func stopRepeated(f *fixture) {
	a, b := f.pair()
	a.granted(a.ask("k"))
	b.signalled(stop("k", "one"), store.Holds)
	first := f.stopping(b.get("k"), "one")
	heard := func() (last store.Signal) {
		f.Helper()
		signals, err := a.Signals(f.ctx(), []store.LeaseID{a.lease})
		if err != nil {
			f.Fatal(err)
		}
		for _, s := range signals {
			if s.ID > last.ID {
				last = s
			}
			a.forget(s.ID)
		}
		return last
	}
	f.sameReason(heard().Reason, "one")
	a.signalled(stop("k", "one"), store.Holds)
	a.hasSignals(0, a.lease)
	for _, reason := range []string{"two", "", "three"} {
		b.signalled(stop("k", reason), store.Holds)
		b.signalled(stop("k", reason), store.Holds)
		if now := f.stopping(b.get("k"), reason); !now.At.Equal(first.At) {
			f.Errorf("asked first at %v, now at %v", first.At, now.At)
		}
		told := heard()
		if told.ID == 0 {
			f.Fatalf("a new reason was not sent: %q", reason)
		}
		f.sameReason(told.Reason, reason)
	}
}

func breakTold(f *fixture) {
	a, b := f.pair()
	a.listens()
	ask := a.askHold("k", longTTL, longHold)
	token := a.granted(ask).Token
	waiter := b.ask("k")
	b.queued(waiter, 1)
	reason := "stuck"
	b.signalled(store.Signal{Kind: store.Break, Key: "k", Reason: &reason}, store.Holds)
	a.awaitSignals()
	a.renewalSays(true, ask.Lease)
	told := a.hasSignals(1, ask.Lease)[0]
	if told.Kind != store.Break || told.Key != "k" || told.Token != token {
		f.Errorf("received %+v", told)
	}
	f.sameReason(told.Reason, "stuck")
	b.holds("k", token, 1)
	b.want(b.check(waiter), store.Queued)
	c := claim(ask, token)
	c.AtOnce = true
	a.released(c) // as the holder's sidecar does
	a.forget(told.ID)
	grant := b.awaitNews(waiter)
	b.holds("k", grant.Token, 0)
	b.noSignalFor(grant.Token, b.lease)
}

// breakEndsTheHold: a living holder keeps the lock while it renews its lease. The lock of a dead
// sidecar is free when the lease ends.
func breakEndsTheHold(f *fixture) {
	a, b := f.pair()
	breakUp := func(key string) { b.signalled(store.Signal{Kind: store.Break, Key: key}, store.Holds) }
	ask, waiter := a.askHold("renewed", longTTL, longHold), b.ask("renewed")
	token := a.granted(ask).Token
	b.queued(waiter, 1)
	breakUp("renewed")
	if !b.Traits().Polls {
		b.awaitAnyNews(waiter) // it believed that the lease lasts as long as the hold
	}
	for range 2 {
		if l := b.holds("renewed", token, 1); l.Holder.HoldPending || l.Holder.ExpiresIn > longTTL {
			f.Errorf("after the break: %+v", l)
		}
		if kept := a.renew(ask.Lease); len(kept) != 1 {
			f.Fatal("not renewed")
		}
	}
	a.revoke(ask.Lease)
	b.awaitNews(waiter)

	for _, key := range []string{"free", "contended"} {
		var gone store.Answer
		a.poll("a grant under a short lease", func() bool {
			gone = a.acquire(a.askHold(key, shortTTL, longHold))
			return gone.Outcome == store.Granted
		})
		next := b.ask(key)
		b.queued(next, 1)
		if key == "free" {
			b.cancel(next)
		}
		b.poll("the TTL of the holder's lease", func() bool { return b.get(key).Holder.HeldFor > shortTTL })
		breakUp(key)
		if l := b.get(key); l.Held && l.Token == gone.Token && (l.Holder.HoldPending || l.Holder.ExpiresIn > shortTTL) {
			f.Errorf("after the break: %+v", l)
		}
		if key == "contended" {
			b.awaitGrant(next)
			continue
		}
		b.poll("the end of the lease", func() bool { return !b.get(key).Held })
		if l := b.get(key); !l.Expired {
			f.Errorf("after a break with a dead holder: %+v", l)
		}
		b.granted(next)
	}
}

func signalsInABatch(f *fixture) {
	a, b := f.pair()
	token := a.granted(a.ask("z")).Token
	a.granted(a.ask("a"))
	a.granted(a.askTTL("m", longTTL))
	standings, err := b.Signal(f.ctx(), []store.Signal{
		stop("z", "z"), stop("never", ""),
		{Kind: store.Break, Key: "m"},
		{Kind: store.Break, Key: "a"},
		{Kind: store.Stop, Key: "y"},
	})
	if err != nil || len(standings) != 5 {
		f.Fatalf("Signal: %v, %v", standings, err)
	}
	want := []store.ClaimStatus{store.Holds, store.UnknownToken, store.Holds, store.Holds, store.UnknownToken}
	for i, got := range standings {
		if got != want[i] {
			f.Errorf("signal %d: status %s, want %s", i, standing(got), standing(want[i]))
		}
	}
	b.free("m")
	kinds := map[string]store.SignalKind{}
	for _, s := range a.hasSignals(2, a.lease) {
		kinds[s.Key] = s.Kind
	}
	if kinds["z"] != store.Stop || kinds["a"] != store.Break {
		f.Errorf("received %v", kinds)
	}
	f.stopping(b.holds("z", token, 0), "z")
}
