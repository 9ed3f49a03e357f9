package storetest

import (
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/store"
)

// cohortCases test which waiters a hand-off returns as its cohort, and how the store learns that
// the sidecar served them.
// Proves: promise 3, promise 5
func cohortCases() []testCase {
	return []testCase{
		{"a hand-off returns the sidecar's waiters directly behind the new holder", func(f *fixture) {
			a, b := f.pair()
			holder := b.ask("k")
			token := b.granted(holder).Token
			first, second, third, other, last := b.ask("k"), b.ask("k"), b.ask("k"), a.ask("k"), b.ask("k")
			b.queued(first, 1)
			b.queued(second, 2)
			b.queued(third, 3)
			a.queued(other, 4)
			b.queued(last, 5)
			b.released(claim(holder, token))
			b.wantCohort(first, second, third)
		}},
		{"served waiters leave the queue with the release, and nobody is overtaken", func(f *fixture) {
			a, b := f.pair()
			token, line := b.cohort("k", 3)
			other := a.ask("k")
			a.queued(other, 3)
			served := store.Claim{Key: "k", Token: token + 2, Lease: b.lease, Served: []store.AttemptID{line[1].ID, line[2].ID}}
			b.released(served)
			grant := a.awaitNews(other)
			if grant.Token <= token+2 {
				f.Errorf("token %d after %d", grant.Token, token+2)
			}
			b.want(b.check(line[1]), store.Gone)
			b.want(b.check(line[2]), store.Gone)
			if verdicts, err := b.Release(b.ctx(), []store.Claim{served}); err != nil || verdicts[0].Status != store.UnknownToken {
				f.Errorf("repeated: %+v, %v", verdicts, err)
			}
			a.holds("k", grant.Token, 0)
		}},
		{"the first waiter that was not served is next", func(f *fixture) {
			b := f.instance("b")
			token, line := b.cohort("k", 4)
			b.released(store.Claim{Key: "k", Token: token + 1, Lease: b.lease, Served: []store.AttemptID{line[1].ID}})
			b.wantCohort(line[2], line[3])
		}},
		{"an enqueue behind the sidecar's own holder returns the whole cohort", func(f *fixture) {
			b := f.instance("b")
			token, line := b.cohort("k", 3)
			fourth := b.ask("k")
			a := b.queued(fourth, 3)
			if want := halvesOf(append(line[1:], fourth)); !slices.Equal(a.Cohort, want) || !a.Alone || a.Lock.Token != token {
				f.Fatalf("got %+v, want the cohort %x of %d", a, want, token)
			}
			// The sidecar serves all of them. The next grant of the key has a greater token than each.
			next := b.ask("k")
			if a := b.queued(next, 4); !slices.Equal(a.Cohort, halvesOf(append(line[1:], fourth, next))) {
				f.Errorf("got %+v", a)
			}
			b.released(store.Claim{
				Key: "k", Token: token + 3, Lease: b.lease, Served: []store.AttemptID{line[1].ID, line[2].ID, fourth.ID},
			})
			if grant := b.wantCohort(next); grant.Token <= token+4 {
				f.Errorf("token %d after %d", grant.Token, token+4)
			}
		}},
		{"an enqueue behind a holder without waiters returns a cohort of one", func(f *fixture) {
			b := f.instance("b")
			holder := b.ask("k")
			token := b.granted(holder).Token
			first, second := b.ask("k"), b.ask("k")
			answers := b.enqueueAll([]store.Ask{first, second}, []store.Outcome{store.Queued, store.Queued}, []int{1, 2})
			if last := answers[1]; !slices.Equal(last.Cohort, halvesOf([]store.Ask{first, second})) || last.Lock.Token != token {
				f.Errorf("got %+v", last)
			}
			for i := range answers {
				if !answers[i].Alone {
					f.Errorf("ask %d: %+v", i, answers[i])
				}
			}
		}},
		{"a waiter of another sidecar ends the cohort of those behind it", func(f *fixture) {
			a, b := f.pair()
			holder := b.ask("k")
			b.granted(holder)
			first, other, last := b.ask("k"), a.ask("k"), b.ask("k")
			b.queued(first, 1)
			if got := a.queued(other, 2); got.Cohort != nil || got.Alone {
				f.Errorf("the other sidecar got %+v", got)
			}
			if got := b.queued(last, 3); got.Cohort != nil || got.Alone {
				f.Errorf("the waiter behind it got %+v", got)
			}
			many := []store.Ask{b.ask("k"), b.ask("k"), b.ask("k"), b.ask("k")}
			for _, got := range b.enqueueAll(many, slices.Repeat([]store.Outcome{store.Queued}, 4), []int{4, 5, 6, 7}) {
				if got.Cohort != nil || got.Alone {
					f.Errorf("one of several got %+v", got)
				}
			}
		}},
		{"several enqueues behind the own holder return the cohort with the last", func(f *fixture) {
			b := f.instance("b")
			b.granted(b.ask("k"))
			many := []store.Ask{b.ask("k"), b.ask("k"), b.ask("k"), b.ask("k"), b.ask("k")}
			answers := b.enqueueAll(many, slices.Repeat([]store.Outcome{store.Queued}, 5), []int{1, 2, 3, 4, 5})
			if got := answers[4]; !slices.Equal(got.Cohort, halvesOf(many)) || !answers[0].Alone {
				f.Errorf("got %+v", got)
			}
		}},
		{"a stop, and a waiter of another kind, end what an enqueue returns", func(f *fixture) {
			a, b := f.pair()
			b.granted(b.ask("kind"))
			kind := b.ask("kind")
			kind.Skip = true
			if got := b.queued(kind, 1); got.Cohort != nil {
				f.Errorf("a waiter that skips got %+v", got)
			}
			if got := b.queued(b.ask("kind"), 2); got.Cohort != nil {
				f.Errorf("behind it: %+v", got)
			}
			b.granted(b.ask("stop"))
			a.signalled(stop("stop", "enough"), store.Holds)
			if got := b.queued(b.ask("stop"), 1); got.Cohort != nil {
				f.Errorf("behind a holder that stops: %+v", got)
			}
		}},
		{"a cohort ends at a waiter of another kind", func(f *fixture) {
			b := f.instance("b")
			for name, change := range map[string]func(*store.Ask){
				"ttl":   func(a *store.Ask) { a.TTL = time.Minute },
				"hold":  func(a *store.Ask) { a.MinHold = time.Millisecond },
				"skip":  func(a *store.Ask) { a.Skip = true },
				"lease": func(a *store.Ask) { a.Lease = b.openLease(longTTL) },
			} {
				holder := b.ask(name)
				token := b.granted(holder).Token
				first, kind, last := b.ask(name), b.ask(name), b.ask(name)
				change(&kind)
				b.queued(first, 1)
				b.queued(kind, 2)
				b.queued(last, 3)
				b.released(claim(holder, token))
				b.wantCohort(first)
			}
		}},
		{"a watched key has no cohort", func(f *fixture) {
			b := f.instance("b")
			if err := b.Watch(b.ctx(), []string{"k"}, b.lease); err != nil {
				f.Fatal(err)
			}
			holder := b.ask("k")
			token := b.granted(holder).Token
			first := b.ask("k")
			b.queued(first, 1)
			b.queued(b.ask("k"), 2)
			b.released(claim(holder, token))
			b.wantCohort(first)
		}},
		{"an adoption makes the last served waiter the holder", func(f *fixture) {
			b := f.instance("b")
			token, line := b.cohort("k", 3)
			adoption := store.Adoption{
				Change: store.Change{Key: "k", Token: token + 1, Lease: b.lease, Data: []byte(`1`)}, Served: []store.AttemptID{line[1].ID},
				Session: "second", Owner: "o", AcquiredAt: time.Now(), Traceparent: "t",
			}
			for range 2 { // it may be repeated
				f.sameJSON(b.adopted(adoption).Lock.Holder.Data, `1`)
				adoption.Data = []byte(`9`)
			}
			adoption.SetData, adoption.Data = true, []byte(`2`)
			b.adopted(adoption)
			b.holds("k", token+1, 1)
			if h := b.get("k").Holder; h.Session != "second" || h.Owner != "o" || string(h.Data) != "2" || h.Traceparent != "t" {
				f.Errorf("held by %+v", h)
			}
			b.refused(claim(line[0], token), store.UnknownToken)
			b.released(store.Claim{Key: "k", Token: token + 2, Lease: b.lease, Served: []store.AttemptID{line[1].ID, line[2].ID}})
			b.free("k")
		}},
		{"an adoption shows the new holder a stop of the holder before", func(f *fixture) {
			a, b := f.pair()
			token, line := b.cohort("k", 3)
			a.signalled(stop("k", "enough"), store.Holds)
			adoption := store.Adoption{
				Change: store.Change{Key: "k", Token: token + 1, Lease: b.lease}, Served: []store.AttemptID{line[1].ID},
				Session: "second", AcquiredAt: time.Now(),
			}
			for range 2 {
				f.stopping(b.adopted(adoption).Lock, "enough")
			}
			f.stopping(a.holds("k", token+1, 1), "enough")
			served := store.Claim{Key: "k", Token: token + 1, Lease: b.lease, Served: []store.AttemptID{line[1].ID}}
			b.released(served)
			b.wantCohort(line[2])
			if l := a.get("k"); l.Stopping != nil {
				f.Errorf("the holder of the next hand-off is stopping: %+v", l)
			}
		}},
		{"watchers are notified when a served waiter becomes the holder", func(f *fixture) {
			f.watchPair(func(in, b *instance) {
				token, line := b.cohort("k", 3)
				in.watch(in.lease, "k")
				adoption := store.Adoption{
					Change: store.Change{Key: "k", Token: token + 1, Lease: b.lease}, Served: []store.AttemptID{line[1].ID},
					Session: "second", AcquiredAt: time.Now(),
				}
				for range 2 {
					b.adopted(adoption)
				}
				in.hears("k", event(store.EventReleased, token), event(store.EventAcquired, token+1))
				b.released(store.Claim{Key: "k", Token: token + 2, Lease: b.lease, Served: []store.AttemptID{line[1].ID, line[2].ID}})
				in.hears("k", event(store.EventReleased, token+1))
				in.marker(b)
				in.heardNothing("k")
			})
		}},
		{"a token of a cohort is unknown in a claim that names no served waiter", func(f *fixture) {
			b := f.instance("b")
			token, line := b.cohort("k", 2)
			b.refused(claim(line[1], token+1), store.UnknownToken)
			b.refused(store.Claim{Key: "k", Token: token + store.TokensPerGrant, Lease: b.lease, Served: []store.AttemptID{line[0].ID}}, store.UnknownToken)
			b.holds("k", token, 1)
		}},
		{"served waiters end with their lease", func(f *fixture) {
			a, b := f.pair()
			b.cohort("k", 3)
			other := a.ask("k")
			a.queued(other, 3)
			b.revoke(b.lease)
			a.awaitNews(other)
			a.holds("k", a.want(a.check(other), store.Granted).Token, 0)
		}},
	}
}

// cohort queues n attempts of the instance for a key, and hands the key to the first of them.
func (in *instance) cohort(key string, n int) (token int64, line []store.Ask) {
	in.Helper()
	holder := in.ask(key)
	token = in.granted(holder).Token
	for i := range n {
		line = append(line, in.ask(key))
		in.queued(line[i], i+1)
	}
	in.released(claim(holder, token))
	return in.wantCohort(line[0], line[1:]...).Token, line
}

// wantCohort waits for the hand-off to first, whose cohort must be the attempts behind.
func (in *instance) wantCohort(first store.Ask, behind ...store.Ask) store.Answer {
	in.Helper()
	var grant store.Answer
	in.poll("news of the hand-off", func() bool {
		select {
		case n := <-in.newsOf(first.ID):
			grant = n.Answer
			return true
		default:
			return false
		}
	})
	want := halvesOf(behind)
	if !slices.Equal(grant.Cohort, want) {
		in.Fatalf("cohort of %d, want %d: %x", len(grant.Cohort), len(want), grant.Cohort)
	}
	return in.want(grant, store.Granted)
}

func halvesOf(asks []store.Ask) (halves []store.HalfID) {
	for _, ask := range asks {
		halves = append(halves, store.HalfOf(ask.ID))
	}
	return halves
}

func (in *instance) refused(c store.Claim, want store.ClaimStatus) {
	in.Helper()
	verdicts, err := in.Release(in.ctx(), []store.Claim{c})
	if err != nil || verdicts[0].Status != want {
		in.Fatalf("got %+v: %+v, %v, want %d", c, verdicts, err, want)
	}
}
