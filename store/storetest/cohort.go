package storetest

import (
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/store"
)

// cohortCases test which waiters a hand-off returns as its cohort, and how the store learns that
// the sidecar served them.
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
		{"Amend makes the last served waiter the holder", func(f *fixture) {
			b := f.instance("b")
			token, line := b.cohort("k", 3)
			c := store.Change{
				Claim:   store.Claim{Key: "k", Token: token + 1, Lease: b.lease, Served: []store.AttemptID{line[1].ID}, Traceparent: "t"},
				Session: "second", Owner: "o", AcquiredAt: time.Now(), SetData: true, Data: []byte(`2`),
			}
			for range 2 { // it may be repeated
				if verdicts, err := b.Amend(b.ctx(), []store.Change{c}); err != nil || verdicts[0].Status != store.Holds {
					f.Fatalf("got %+v, %v", verdicts, err)
				}
			}
			b.holds("k", token+1, 1)
			if h := b.get("k").Holder; h.Session != "second" || h.Owner != "o" || string(h.Data) != "2" || h.Traceparent != "t" {
				f.Errorf("held by %+v", h)
			}
			b.refused(claim(line[0], token), store.UnknownToken)
			b.released(store.Claim{Key: "k", Token: token + 2, Lease: b.lease, Served: []store.AttemptID{line[1].ID, line[2].ID}})
			b.free("k")
		}},
		{"Amend shows the new holder a stop of the holder before", func(f *fixture) {
			a, b := f.pair()
			token, line := b.cohort("k", 3)
			a.signalled(stop("k", "enough"), store.Holds)
			c := store.Change{
				Claim:   store.Claim{Key: "k", Token: token + 1, Lease: b.lease, Served: []store.AttemptID{line[1].ID}},
				Session: "second", AcquiredAt: time.Now(),
			}
			for range 2 {
				f.stopping(b.stands(b.amend(c), store.Holds).Lock, "enough")
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
				c := store.Change{
					Claim:   store.Claim{Key: "k", Token: token + 1, Lease: b.lease, Served: []store.AttemptID{line[1].ID}},
					Session: "second", AcquiredAt: time.Now(),
				}
				for range 2 {
					b.stands(b.amend(c), store.Holds)
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
	var want []store.HalfID
	for _, ask := range behind {
		want = append(want, store.HalfOf(ask.ID))
	}
	if !slices.Equal(grant.Cohort, want) {
		in.Fatalf("cohort of %d, want %d: %x", len(grant.Cohort), len(want), grant.Cohort)
	}
	return in.want(grant, store.Granted)
}

func (in *instance) refused(c store.Claim, want store.ClaimStatus) {
	in.Helper()
	verdicts, err := in.Release(in.ctx(), []store.Claim{c})
	if err != nil || verdicts[0].Status != want {
		in.Fatalf("got %+v: %+v, %v, want %d", c, verdicts, err, want)
	}
}
