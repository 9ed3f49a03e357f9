package cas_test

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/cas"
	"github.com/locksidecar/locksidecar/store/cas/fake"
)

// keeps gets a key that the instance has just released, by a keepable grant.
func (in *instance) keeps(name string) (store.Ask, store.Answer) {
	in.Helper()
	first, again := in.ask(name), in.ask(name)
	grant := in.gets(first, store.Granted)
	in.releases(first, grant, store.Holds)
	again.Last = grant.Token
	grant = in.tries(again, store.Granted)
	if !grant.Keepable {
		in.Fatalf("%s: not keepable: %+v", name, grant)
	}
	return again, grant
}

// takes is the claim of a session that got the kept key from its instance.
func takes(ask store.Ask, token int64) store.Claim {
	return store.Claim{Key: ask.Key, Token: token, Lease: ask.Lease, Served: []store.AttemptID{uuid.New()}}
}

func (in *instance) claims(c store.Claim, want store.ClaimStatus) {
	in.Helper()
	verdicts, err := in.Release(in.Context(), []store.Claim{c})
	if in.ok(err); verdicts[0].Status != want {
		in.Fatalf("%s under %d: claim status %d, want %d", c.Key, c.Token, verdicts[0].Status, want)
	}
}

// recalled takes the news, which must be one recall of this key.
func (in *instance) recalled(name string) {
	in.Helper()
	if news := in.told(); len(news) != 1 || !news[0].Recall || news[0].Key != name || news[0].ID != (store.AttemptID{}) {
		in.Fatalf("told %+v, want the recall of %s", news, name)
	}
}

// A keepable grant, its end and a recall cost no requests of their own.
func TestRoundTripsOfKeptKeys(t *testing.T) {
	pair(t, cas.Config{}, func(_ *fake.Server, a, b *instance) {
		first := a.ask("k")
		grant := a.gets(first, store.Granted)
		a.made()
		again := a.ask("k")
		again.Last = grant.Token
		answers, acquireErr, verdicts, releaseErr := a.AcquireAndRelease(a.Context(), []store.Ask{again}, []store.Claim{claim(&first, grant)})
		a.ok(acquireErr)
		a.ok(releaseErr)
		if a.wants("a release and the next ask", "Swap"); verdicts[0].Status != store.Holds || !answers[0].Keepable {
			t.Fatalf("%+v, %+v", verdicts, answers)
		}
		b.gets(b.ask("k"), store.Queued)
		b.wants("a wait for a key that it has not seen", "Swap "+"Swap")
		a.recalled("k")
		a.claims(takes(again, answers[0].Token+5), store.Holds)
		a.wants("a release that hands the key on, by an instance that was told of the waiter", "Load Swap")
		a.claims(takes(again, answers[0].Token+5), store.UnknownToken)
	})
}

// A keepable grant whose answer was lost is found again, and kept only if nobody else has come meanwhile. Its withdrawal frees the key.
// Proves: promise 9, trap kept key, trap recall
func TestAKeepableGrantOfUnknownOutcome(t *testing.T) {
	for name, late := range map[string]time.Duration{"carried out": 0, "late": time.Second} {
		t.Run(name, func(t *testing.T) {
			pair(t, cas.Config{}, func(_ *fake.Server, a, b *instance) {
				lost := func() store.Ask {
					ask, grant := a.keeps("k")
					a.releases(ask, grant, store.Holds)
					again := a.ask("k")
					again.Last = grant.Token
					a.fails("Swap", fake.Fault{Lost: true, Late: late})
					if _, err := a.Acquire(a.Context(), []store.Ask{again}); !store.OutcomeUnknown(err) {
						t.Fatal(err)
					}
					time.Sleep(2 * late)
					a.told()
					return again
				}
				ask := lost()
				grant := a.tries(ask, store.Granted)
				if !grant.Keepable {
					t.Errorf("found again: %+v", grant)
				}
				a.releases(ask, grant, store.Holds)

				ask = lost()
				waiter := b.ask("k")
				b.gets(waiter, store.Queued)
				a.recalled("k") // before the answer with the grant
				if grant = a.tries(ask, store.Granted); grant.Keepable {
					t.Errorf("found again after the recall: %+v", grant)
				}
				a.releases(ask, grant, store.Holds)
				b.releases(waiter, b.checks(waiter, store.Granted), store.Holds)

				ask = lost()
				outcomes, err := a.Withdraw(a.Context(), []store.Attempt{ask.Attempt})
				if a.ok(err); outcomes[0] != store.Gone {
					t.Errorf("withdrawn: %v", outcomes)
				}
				b.tries(b.ask("k"), store.Granted)
			})
		})
	}
}

// A keepable grant that is on its way is withdrawn like any other: it does not come later.
func TestAKeepableGrantIsWithdrawnOnItsWay(t *testing.T) {
	pair(t, cas.Config{}, func(_ *fake.Server, a, b *instance) {
		ask, grant := a.keeps("k")
		a.releases(ask, grant, store.Holds)
		again := a.ask("k")
		again.Last = grant.Token
		a.fails("Swap", fake.Fault{Lost: true, Late: time.Minute})
		if _, err := a.Acquire(a.Context(), []store.Ask{again}); !store.OutcomeUnknown(err) {
			t.Fatal(err)
		}
		outcomes, err := a.Withdraw(a.Context(), []store.Attempt{again.Attempt})
		if a.ok(err); outcomes[0] != store.Gone {
			t.Errorf("withdrawn: %v", outcomes)
		}
		theirs := b.tries(b.ask("k"), store.Granted)
		time.Sleep(2 * time.Minute)
		if held := a.tries(a.ask("k"), store.Held); held.Lock.Token != theirs.Token || held.Lock.Kept {
			t.Errorf("held: %+v", held.Lock)
		}
	})
}

// The release of a kept key that comes late, or again, frees no other lock: neither the next keepable one of the same instance nor another
// instance's.
// Proves: promise 9, trap kept key
func TestALateReleaseOfAKeptKey(t *testing.T) {
	pair(t, cas.Config{}, func(_ *fake.Server, a, b *instance) {
		for _, by := range []*instance{a, b} {
			ask, grant := a.keeps("k")
			for _, c := range []func() store.Claim{
				func() store.Claim { return claim(&ask, grant) },
				func() store.Claim { return takes(ask, grant.Token+1) },
				func() store.Claim { return takes(ask, grant.Token+store.TokensPerGrant-1) },
			} {
				c := c()
				a.fails("Swap", fake.Fault{Lost: true, Late: time.Minute})
				if _, err := a.Release(a.Context(), []store.Claim{c}); !store.OutcomeUnknown(err) {
					t.Fatal(err)
				}
				a.claims(c, store.Holds) // it was not carried out yet
				next := by.ask("k")
				if by == a {
					next.Last = grant.Token
				}
				got := by.tries(next, store.Granted)
				if got.Keepable != (by == a) || got.Token < grant.Token+store.TokensPerGrant {
					t.Fatalf("the next grant: %+v after %d", got, grant.Token)
				}
				time.Sleep(2 * time.Minute)
				a.claims(c, store.UnknownToken)
				if locks, err := b.Get(b.Context(), []string{"k"}); err != nil || !locks[0].Held || locks[0].Token != got.Token {
					t.Fatalf("%+v, %v, want it held under %d", locks, err, got.Token)
				}
				if by == b {
					b.releases(next, got, store.Holds)
					ask, grant = a.keeps("k")
				} else {
					ask, grant = next, got
				}
			}
			a.releases(ask, grant, store.Holds)
		}
	})
}

// A recall that is lost is reported as every lost letter.
// Proves: trap recall
func TestALostRecallIsReported(t *testing.T) {
	pair(t, cas.Config{}, func(_ *fake.Server, a, b *instance) {
		a.keeps("k")
		a.told()
		a.losing = true
		b.gets(b.ask("k"), store.Queued)
		if news := a.told(); len(news) != 1 || !news[0].Missed {
			t.Fatalf("told %+v, want a hint that something was missed", news)
		}
	})
}

// After a failover that forgot a keepable grant, nothing that its instance did with it frees a later lock, and later tokens are greater.
// Proves: trap kept key, trap failover
func TestAForgottenKeptKey(t *testing.T) {
	pair(t, cas.Config{}, func(server *fake.Server, a, b *instance) {
		first := a.ask("k")
		grant := a.gets(first, store.Granted)
		a.releases(first, grant, store.Holds)
		before := server.Copy()
		again := a.ask("k")
		again.Last = grant.Token
		kept := a.tries(again, store.Granted)
		server.FailOver(before, quietTime)
		more := a.ask("k")
		more.Last = kept.Token
		a.tries(more, store.Quiet)
		a.claims(takes(again, kept.Token+9), store.Released) // the row knows the grant before
		waiter := b.ask("k")
		b.gets(waiter, store.Queued)
		time.Sleep(quietTime + time.Millisecond)
		got := b.checks(waiter, store.Granted)
		if got.Token < kept.Token+store.TokensPerGrant {
			t.Errorf("token %d after the forgotten %d", got.Token, kept.Token)
		}
		a.claims(takes(again, kept.Token+9), store.UnknownToken)
		b.releases(waiter, got, store.Holds)
		if late := a.tries(more, store.Granted); late.Keepable {
			t.Errorf("somebody had the key in between: %+v", late)
		}
	})
}

// A key that is kept in the quiet time is recalled, and given to its waiter when the time is over.
// Proves: trap kept key, trap failover
func TestAKeptKeyInTheQuietTime(t *testing.T) {
	pair(t, cas.Config{}, func(server *fake.Server, a, b *instance) {
		ask, kept := a.keeps("k")
		a.told()
		server.FailOver(server.Copy(), quietTime)
		waiter := b.ask("k")
		if queued := b.gets(waiter, store.Queued); !queued.Lock.Kept {
			t.Errorf("behind %+v", queued.Lock)
		}
		a.recalled("k")
		a.claims(takes(ask, kept.Token+1), store.Holds)
		b.checks(waiter, store.Queued)
		a.claims(takes(ask, kept.Token+1), store.Released)
		time.Sleep(quietTime + time.Millisecond)
		b.checks(waiter, store.Granted)
	})
}

// A kept key ends with its lease, also if only a later ask finds that, and a session that got it late frees nobody's lock.
func TestTheLeaseOfAKeptKeyDies(t *testing.T) {
	pair(t, cas.Config{}, func(server *fake.Server, a, b *instance) {
		ask, kept := a.keeps("k")
		server.Kill(a.lease)
		theirs := b.ask("k")
		grant := b.tries(theirs, store.Granted)
		if grant.Token < kept.Token+store.TokensPerGrant {
			t.Errorf("token %d after %d", grant.Token, kept.Token)
		}
		for _, c := range []store.Claim{claim(&ask, kept), takes(ask, kept.Token+1)} {
			a.claims(c, store.UnknownToken)
			amended, err := a.Amend(a.Context(), []store.Change{change(c)})
			if a.ok(err); amended[0].Status != store.UnknownToken {
				t.Errorf("amended: %+v", amended)
			}
		}
		b.releases(theirs, grant, store.Holds)
	})
}

// Who begins to watch a kept key recalls it, because what its instance does with it makes no events.
// Proves: trap recall
func TestAWatchRecallsAKeptKey(t *testing.T) {
	pair(t, cas.Config{}, func(_ *fake.Server, a, b *instance) {
		a.keeps("k")
		a.told()
		b.ok(b.Watch(b.Context(), []string{"k"}, b.lease))
		a.recalled("k")
	})
}

// A waiter of the keeper itself recalls nothing, and does not hide that another instance wants the key: it may leave.
// Proves: trap recall
func TestAnOwnWaiterHidesNobody(t *testing.T) {
	pair(t, cas.Config{}, func(_ *fake.Server, a, b *instance) {
		a.keeps("k")
		a.told()
		a.gets(a.ask("k"), store.Queued)
		if news := a.told(); len(news) != 0 {
			t.Errorf("told %+v", news)
		}
		b.gets(b.ask("k"), store.Queued)
		a.recalled("k")
	})
}
