package storetest

import (
	"fmt"
	"slices"

	"github.com/locksidecar/locksidecar/store"
)

func watchCases() []testCase {
	return []testCase{
		{"a watching instance is notified of what happens to the key", watchHears},
		{"a watching instance is notified of its own operations", func(f *fixture) {
			in := f.instance("a")
			in.watch(in.lease, "k")
			ask := in.ask("k")
			token := in.granted(ask).Token
			in.hears("k", event(store.EventAcquired, token))
			in.released(success(claim(ask, token), `1`))
			in.hears("k", event(store.EventReleased, token))
		}},
		{"a hand-off is reported as the end of one grant and the start of the next", watchHandOff},
		{"an expiry is reported when an operation finds it", watchExpiry},
		{"events are reported only for watched keys, and only until Unwatch", watchEnds},
		{"every watching instance is notified until its own Unwatch", watchers},
		{"a watch ends with its lease", watchDies},
		{"a watch can continue under another lease", func(f *fixture) {
			f.watchPair(func(in, by *instance) {
				lease := in.openLease(longTTL)
				in.watch(lease, "k")
				in.watch(in.lease, "k")
				in.watch(in.lease, "k")
				in.revoke(lease)
				ask := by.ask("k")
				token := by.granted(ask).Token
				in.hears("k", event(store.EventAcquired, token))
				by.released(claim(ask, token))
				in.hears("k", event(store.EventReleased, token))
				in.marker(by)
				in.heardNothing("k")
			})
		}},
		{"a watch under a dead lease fails, and an earlier watch of the key stays", func(f *fixture) {
			f.watchPair(func(in, by *instance) {
				dead := in.openLease(longTTL)
				in.revoke(dead)
				in.watch(in.lease, "k")
				if err := in.Watch(in.ctx(), []string{"k", "l"}, dead); !store.Unavailable(err) || store.OutcomeUnknown(err) {
					f.Errorf("Watch under a dead lease: %v", err)
				}
				in.renew(dead, in.lease)
				token := by.granted(by.ask("k")).Token
				in.hears("k", event(store.EventAcquired, token))
				by.granted(by.ask("l"))
				in.marker(by)
				in.heardNothing("l")
			})
		}},
		{"a withdrawal of a grant whose lease expired is reported as an expiry", func(f *fixture) {
			f.watchPair(func(in, by *instance) {
				in.watch(in.lease, "k")
				ask, grant := by.shortHold("k")
				in.hears("k", event(store.EventAcquired, grant.Token))
				by.awaitExpiry(ask.Lease, shortTTL)
				by.withdraw(ask)
				in.hears("k", event(store.EventExpired, grant.Token))
				by.stands(by.release(claim(ask, grant.Token)), store.Expired)
			})
		}},
		{"a release with a hold is reported at once, and the end of the hold is not reported as an expiry", watchHold},
		{"a stop is reported, also for a bind:ttl lock", watchStop},
		{"odd keys are watched like any other", func(f *fixture) {
			f.watchPair(func(in, by *instance) {
				in.watch(in.lease, oddKeys...)
				for _, key := range oddKeys {
					ask := by.ask(key)
					token := by.granted(ask).Token
					in.hears(key, event(store.EventAcquired, token))
				}
			})
		}},
	}
}

// watchPair runs a test in which in watches and by acts: first with one instance as both, then with
// two if the store sends news of other instances.
func (f *fixture) watchPair(run func(in, by *instance)) {
	f.Helper()
	in := f.instance("alone")
	run(in, in)
	if in.Traits().Polls {
		return // the store sends only own events
	}
	// The keys must be new, so this run needs another namespace.
	namespace := f.namespace + "-pair"
	run(f.instanceIn(namespace, "watcher"), f.instanceIn(namespace, "doer"))
}

func (in *instance) watch(lease store.LeaseID, keys ...string) {
	in.Helper()
	if err := in.Watch(in.ctx(), keys, lease); err != nil {
		in.Fatalf("Watch: %v", err)
	}
}

func (in *instance) unwatch(keys ...string) {
	in.Helper()
	if err := in.Unwatch(in.ctx(), keys); err != nil {
		in.Fatalf("Unwatch: %v", err)
	}
}

func event(kind store.EventKind, token int64) store.Event {
	return store.Event{Kind: kind, Token: token}
}

// hears waits for the next events of a key, in this order, and returns the last.
func (in *instance) hears(key string, events ...store.Event) (last store.Event) {
	in.Helper()
	for _, want := range events {
		in.poll(fmt.Sprintf("event %d of %q under %d", want.Kind, key, want.Token), func() bool {
			var ok bool
			last, ok = in.nextEvent(key)
			return ok
		})
		if last.Kind != want.Kind || last.Token != want.Token {
			in.Fatalf("event %+v of %q, want %+v", last, key, want)
		}
	}
	return last
}

// nextEvent takes the next event of a key.
func (in *instance) nextEvent(key string) (store.Event, bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	i := slices.IndexFunc(in.events, func(e store.Event) bool { return e.Key == key })
	if i < 0 {
		return store.Event{}, false
	}
	e := in.events[i]
	in.events = slices.Delete(in.events, i, i+1)
	return e, true
}

// marker waits for an event that by causes now. All earlier events of by have arrived then.
func (in *instance) marker(by *instance) {
	in.Helper()
	ask := by.ask("marker:" + by.openLease(longTTL).String())
	in.watch(in.lease, ask.Key)
	in.hears(ask.Key, event(store.EventAcquired, by.granted(ask).Token))
}

func (in *instance) heardNothing(key string) {
	in.Helper()
	if e, ok := in.nextEvent(key); ok {
		in.Fatalf("unexpected event %+v of %q", e, key)
	}
}

func watchHears(f *fixture) {
	f.watchPair(func(in, by *instance) {
		in.watch(in.lease, "k")
		for _, outcome := range []store.ReleaseOutcome{store.NoOutcome, store.Success, store.Failure} {
			ask := by.ask("k")
			ask.Skip = true
			token := by.granted(ask).Token
			by.acquire(ask) // a repeat is not an event
			in.hears("k", event(store.EventAcquired, token))
			c := claim(ask, token)
			c.Outcome = outcome
			if outcome != store.NoOutcome {
				c.Result = []byte(`{"o":"é"}`)
			}
			by.released(c)
			by.release(c) // a repeat is not an event
			e := in.hears("k", event(store.EventReleased, token))
			if e.Outcome != outcome {
				f.Errorf("event with outcome %d, want %d", e.Outcome, outcome)
			}
			if c.Result == nil {
				if e.Result != nil {
					f.Errorf("event with result %q, want none", e.Result)
				}
				continue
			}
			f.sameJSON(e.Result, `{"o":"é"}`)
		}
		ask := by.askTTL("k", longTTL)
		token := by.want(by.acquire(ask), store.Granted).Token
		by.withdraw(ask)
		in.hears("k", event(store.EventAcquired, token), event(store.EventReleased, token))
	})
}

func watchHandOff(f *fixture) {
	f.watchPair(func(in, by *instance) {
		in.watch(in.lease, "k")
		first, second, third := by.ask("k"), by.ask("k"), by.ask("k")
		first.Lease = by.openLease(longTTL)
		token := by.granted(first).Token
		by.queued(second, 1)
		by.queued(third, 2)
		by.revoke(first.Lease)
		next := by.awaitNews(second).Token
		in.hears("k", event(store.EventAcquired, token), event(store.EventExpired, token), event(store.EventAcquired, next))
		by.released(success(claim(second, next), `1`))
		last := by.awaitNews(third).Token
		e := in.hears("k", event(store.EventReleased, next))
		if e.Outcome != store.Success {
			f.Errorf("got %+v", e)
		}
		in.hears("k", event(store.EventAcquired, last))
		by.withdraw(third)
		in.hears("k", event(store.EventReleased, last))
	})
}

func watchExpiry(f *fixture) {
	f.watchPair(func(in, by *instance) {
		in.watch(in.lease, "k", "w")
		in.hearsExpiry(by, "k", func() (ended, next int64, ask store.Ask) {
			ended = by.granted(by.askTTL("k", shortTTL)).Token
			in.hears("k", event(store.EventAcquired, ended))
			ask = by.ask("k")
			return ended, by.takeOver(ask).Token, ask
		})
		in.hearsExpiry(by, "w", func() (ended, next int64, ask store.Ask) {
			ended = by.granted(by.askTTL("w", shortHoldTime)).Token
			in.hears("w", event(store.EventAcquired, ended))
			ask = by.ask("w")
			by.enqueue(ask)
			return ended, by.awaitGrant(ask).Token, ask
		})
	})
}

// hearsExpiry checks that the end of a grant is reported before the next grant, which replaces it. If the sweep of another test comes first, that
// instance reports the end, after its commit: later, or never if in hears only its own news. Then the case is repeated.
func (in *instance) hearsExpiry(by *instance, key string, replace func() (ended, next int64, ask store.Ask)) {
	in.Helper()
	in.poll("an expiry of "+key+" that no other instance finds", func() bool {
		ended, next, ask := replace()
		var first store.Event
		in.poll("an event of "+key, func() (ok bool) {
			first, ok = in.nextEvent(key)
			return ok
		})
		if first.Kind == store.EventAcquired && first.Token == next {
			by.released(claim(ask, next))
			in.poll("the release of "+key, func() bool {
				e, ok := in.nextEvent(key)
				return ok && e.Kind == store.EventReleased && e.Token == next
			})
			return false
		}
		if first.Kind != store.EventExpired || first.Token != ended {
			in.Fatalf("event %+v of %q, want the expiry of %d", first, key, ended)
		}
		in.hears(key, event(store.EventAcquired, next))
		return true
	})
}

func watchEnds(f *fixture) {
	f.watchPair(func(in, by *instance) {
		in.watch(in.lease, "watched", "left")
		in.unwatch("left", "never watched")
		for _, key := range []string{"other", "left"} {
			ask, waiter := by.ask(key), by.ask(key)
			token := by.granted(ask).Token
			by.queued(waiter, 1)
			by.signalled(stop(key, ""), store.Holds)
			by.released(claim(ask, token))
		}
		in.marker(by)
		in.heardNothing("other")
		in.heardNothing("left")
		in.watch(in.lease, "left")
		token := by.get("left").Token
		by.signalled(stop("left", ""), store.Holds)
		in.hears("left", event(store.EventStopping, token))
	})
}

func watchers(f *fixture) {
	a, b := f.pair()
	by := f.instance("c")
	if a.Traits().Polls {
		return // the store sends only own events
	}
	a.watch(a.lease, "k")
	b.watch(b.lease, "k")
	ask := by.ask("k")
	token := by.granted(ask).Token
	a.hears("k", event(store.EventAcquired, token))
	b.hears("k", event(store.EventAcquired, token))
	a.unwatch("k")
	by.released(claim(ask, token))
	b.hears("k", event(store.EventReleased, token))
	a.marker(by)
	a.heardNothing("k")
	b.unwatch("k")
	by.granted(by.ask("k"))
	b.marker(by)
	b.heardNothing("k")
}

func watchDies(f *fixture) {
	f.watchPair(func(in, by *instance) {
		lease := in.openLease(longTTL)
		in.watch(lease, "k")
		in.watch(in.lease, "kept")
		in.revoke(lease)
		by.granted(by.ask("k"))
		in.hears("kept", event(store.EventAcquired, by.granted(by.ask("kept")).Token))
		in.marker(by)
		in.heardNothing("k")
	})
}

func watchHold(f *fixture) {
	f.watchPair(func(in, by *instance) {
		in.watch(in.lease, "k")
		ask := by.askHold("k", longTTL, shortHoldTime)
		first := by.granted(ask)
		by.released(success(claim(ask, first.Token), `"r"`))
		e := in.hears("k", event(store.EventAcquired, first.Token), event(store.EventReleased, first.Token))
		if e.Outcome != store.Success {
			f.Errorf("got %+v", e)
		}
		f.sameJSON(e.Result, `"r"`)
		next := by.takeOver(by.ask("k"))
		by.after(first, shortHoldTime, next)
		in.hears("k", event(store.EventAcquired, next.Token))
	})
}

func watchStop(f *fixture) {
	f.watchPair(func(in, by *instance) {
		in.watch(in.lease, "session", "ttl")
		for _, ask := range []store.Ask{by.ask("session"), by.askTTL("ttl", longTTL)} {
			token := by.granted(ask).Token
			in.hears(ask.Key, event(store.EventAcquired, token))
			by.signalled(stop(ask.Key, "please"), store.Holds)
			e := in.hears(ask.Key, event(store.EventStopping, token))
			shown := f.stopping(by.get(ask.Key), "please")
			if e.Stopping == nil || !e.Stopping.At.Equal(shown.At) {
				f.Fatalf("got %+v, shown %+v", e.Stopping, shown)
			}
			f.sameReason(e.Stopping.Reason, "please")
		}
		token := by.get("ttl").Token
		by.signalled(store.Signal{Kind: store.Break, Key: "ttl"}, store.Holds)
		var e store.Event
		in.poll("the end of the lock", func() (ok bool) { e, ok = in.nextEvent("ttl"); return ok })
		if e.Kind != store.EventExpired && e.Kind != store.EventReleased || e.Token != token {
			f.Errorf("event %+v of a break", e)
		}
	})
}
