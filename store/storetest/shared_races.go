package storetest

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/store"
)

// Proves: promise 19
func sharedRaceCases() []testCase {
	return []testCase{
		sharing("in a storm, writers exclude readers, and a semaphore keeps its limit and its slots", sharedStorm),
		sharing("a concurrent shared enqueue and release leave no waiter behind", sharedEnqueueMeetsRelease),
		sharing("in a storm of dying leases, no living waiter is left behind", dyingStorm),
		sharing("a concurrent check and revocation of a writer let in the readers behind it", checkMeetsRevocation),
		sharing("a withdrawal during the grant of a share frees the share", withdrawMeetsShare),
	}
}

// occupancy contains the attempts that believe to hold a key. Each holder leaves it before the
// release.
type occupancy struct {
	mu      sync.Mutex
	writers int
	slots   map[int]bool
	last    int64 // the greatest token so far
}

// enter checks a grant against the current holders.
func (o *occupancy) enter(ask store.Ask, got store.Answer) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	before := fmt.Sprintf("%d writers, slots %v", o.writers, o.slots)
	if !ask.Shared {
		o.writers++
	}
	slot := got.Slot
	if ask.Limit == 0 {
		slot = int(got.Token) // readers without a limit have no slots
	}
	if ask.Shared && (o.slots[slot] || ask.Limit > 0 && (got.Slot >= ask.Limit || len(o.slots) >= ask.Limit)) {
		return fmt.Errorf("slot %d of %d beside %s", got.Slot, ask.Limit, before)
	}
	if ask.Shared {
		o.slots[slot] = true
	}
	if o.writers > 1 || o.writers == 1 && len(o.slots) > 0 {
		return fmt.Errorf("granted %+v beside %s", ask, before)
	}
	if !ask.Shared && got.Token <= o.last {
		return fmt.Errorf("token %d of a writer after %d", got.Token, o.last)
	}
	o.last = max(o.last, got.Token)
	return nil
}

func (o *occupancy) leave(ask store.Ask, got store.Answer) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case !ask.Shared:
		o.writers--
	case ask.Limit == 0:
		delete(o.slots, int(got.Token))
	default:
		delete(o.slots, got.Slot)
	}
}

// sharedStorm lets readers or semaphore users compete with writers. All asks for a key have one
// limit.
func sharedStorm(f *fixture, a, b *instance) {
	var grants atomic.Int64
	end := time.Now().Add(raceTime)
	var users []func() error
	for _, limit := range []int{0, 1, 3} {
		key, o := fmt.Sprint("storm", limit), &occupancy{slots: map[int]bool{}}
		for user := range 6 {
			in := []*instance{a, b}[user%2]
			users = append(users, func() error {
				random := rand.New(rand.NewPCG(uint64(user), uint64(limit)))
				for time.Now().Before(end) {
					ask := in.ask(key)
					if random.IntN(4) > 0 {
						ask = in.askShared(key, limit)
					}
					if err := in.passThrough(f, ask, o); err != nil {
						return err
					}
					grants.Add(1)
				}
				return nil
			})
		}
	}
	f.together(users...)
	f.Logf("%d grants", grants.Load())
	for _, key := range []string{"storm0", "storm1", "storm3"} {
		a.free(key)
	}
}

// passThrough acquires a lock, with waiting, and releases it.
func (in *instance) passThrough(f *fixture, ask store.Ask, o *occupancy) error {
	got, err := in.obtain(f, ask)
	if err != nil {
		return err
	}
	if err := o.enter(ask, got); err != nil {
		return err
	}
	o.leave(ask, got)
	verdicts, err := in.Release(f.Context(), []store.Claim{claim(ask, got.Token)})
	if err == nil && verdicts[0].Status != store.Holds {
		err = fmt.Errorf("released: %+v", verdicts[0])
	}
	return err
}

// obtain waits until the lock is granted.
func (in *instance) obtain(f *fixture, ask store.Ask) (store.Answer, error) {
	answers, err := in.Enqueue(f.Context(), []store.Ask{ask})
	for late := time.After(patience); err == nil && answers[0].Outcome == store.Queued; {
		poll := time.After(pause)
		if !in.Traits().Polls {
			poll = nil
		}
		select {
		case <-in.newsOf(ask.ID):
		case <-in.hintsOf(ask.ID):
		case <-poll:
		case <-late:
			return store.Answer{}, fmt.Errorf("no news of %+v", ask)
		}
		answers, err = in.Check(f.Context(), []store.Attempt{ask.Attempt})
	}
	if err != nil {
		return store.Answer{}, err
	}
	if answers[0].Outcome != store.Granted {
		return store.Answer{}, fmt.Errorf("got %+v: %s", ask, name(answers[0].Outcome))
	}
	return answers[0], nil
}

func sharedEnqueueMeetsRelease(f *fixture, a, b *instance) {
	f.rounds(200, func(round int) {
		limit := round % 2
		holder, first, second := a.askShared("k", limit), b.askShared("k", limit), a.ask("k")
		token := a.granted(holder).Token
		var got [2]store.Answer
		f.together(
			func() error {
				_, err := a.Release(f.Context(), []store.Claim{claim(holder, token)})
				return err
			},
			func() (err error) {
				got[0], err = b.obtain(f, first)
				if err == nil {
					_, err = b.Release(f.Context(), []store.Claim{claim(first, got[0].Token)})
				}
				return err
			},
			func() (err error) {
				got[1], err = a.obtain(f, second)
				if err == nil {
					_, err = a.Release(f.Context(), []store.Claim{claim(second, got[1].Token)})
				}
				return err
			},
		)
		if got[0].Token <= token || got[1].Token <= token || got[0].Token == got[1].Token {
			f.Fatalf("tokens %d and %d after %d", got[0].Token, got[1].Token, token)
		}
		a.free("k")
	})
}

// dyingStorm revokes leases while other calls get shares, or wait for them, under these leases. Each waiter whose
// lease lives gets the key, and the key is free at the end.
func dyingStorm(f *fixture, a, b *instance) {
	f.rounds(60, func(round int) {
		limit := []int{0, 2}[round%2]
		lease := a.openLease(longTTL)
		var dying []store.Ask
		for i := range 6 {
			ask := a.askUnder(lease, "k")
			ask.Shared, ask.Limit = i%3 > 0, limit
			if !ask.Shared {
				ask.Limit = 0
			}
			dying = append(dying, ask)
		}
		o := &occupancy{slots: map[int]bool{}}
		f.together(
			func() error {
				for _, ask := range dying { // some acquires find the lease lost
					if _, err := a.Enqueue(f.Context(), []store.Ask{ask}); err != nil {
						return err
					}
				}
				return nil
			},
			func() error { return a.Revoke(f.Context(), []store.LeaseID{lease}) },
			func() error { return b.passThrough(f, b.askShared("k", limit), o) },
			func() error { return b.passThrough(f, b.ask("k"), o) },
			func() error { return a.passThrough(f, a.askShared("k", limit), o) },
		)
		last := a.ask("k")
		a.released(claim(last, a.granted(last).Token))
		b.free("k")
	})
}

func withdrawMeetsShare(f *fixture, a, b *instance) {
	f.rounds(200, func(int) {
		holder, waiter, behind := a.ask("k"), b.askShared("k", 2), a.askShared("k", 2)
		token := a.granted(holder).Token
		b.queued(waiter, 1)
		a.queued(behind, 2)
		f.together(
			func() error {
				_, err := a.Release(f.Context(), []store.Claim{claim(holder, token)})
				return err
			},
			func() error {
				_, err := b.Withdraw(f.Context(), []store.Attempt{waiter.Attempt})
				return err
			},
		)
		got := a.awaitNews(behind)
		b.want(b.check(waiter), store.Gone)
		b.shares("k", 0, got.Token)
		a.released(claim(behind, got.Token))
		a.free("k")
	})
}

func checkMeetsRevocation(f *fixture, a, b *instance) {
	f.rounds(1000, func(int) {
		lease := b.openLease(longTTL)
		holder, writer, reader := a.askShared("k", 0), b.askUnder(lease, "k"), a.askShared("k", 0)
		token := a.granted(holder).Token
		b.queued(writer, 1)
		a.queued(reader, 2)
		check := func() error {
			for {
				answers, err := b.Check(f.Context(), []store.Attempt{writer.Attempt})
				if err != nil || answers[0].Outcome == store.Gone {
					return err
				}
			}
		}
		f.together(check, check, func() error { return b.Revoke(f.Context(), []store.LeaseID{lease}) })
		grant := a.awaitNews(reader)
		a.released(claim(holder, token))
		a.released(claim(reader, grant.Token))
		a.free("k")
	})
}
