package storetest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/store"
)

// raceTime limits each race; a race also ends after enough rounds.
const raceTime = 1500 * time.Millisecond

// Proves: promise 1, promise 5, trap waiter cancels
func raceCases() []testCase {
	return []testCase{
		{"at most one holder in a storm of several instances", storm},
		{"a concurrent cancel and grant agree", cancelMeetsGrant},
		{"a concurrent reap, cancel and release leave no waiter behind", reapMeetsQueue},
		{"a concurrent enqueue and release leave no waiter behind", enqueueMeetsRelease},
		{"concurrent repeats of an attempt find one grant", repetitionsMeet},
	}
}

// together runs functions at the same time and waits for them. The first error ends the test.
func (f *fixture) together(functions ...func() error) {
	f.Helper()
	var wg sync.WaitGroup
	start := make(chan struct{})
	errs := make([]error, len(functions))
	for i, run := range functions {
		wg.Go(func() {
			<-start
			errs[i] = run()
		})
	}
	close(start)
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		f.Fatal(err)
	}
}

// rounds repeats a race, at least a few times.
func (f *fixture) rounds(most int, race func(round int)) {
	f.Helper()
	const least = 20
	end := time.Now().Add(raceTime)
	for round := range most {
		if round >= least && time.Now().After(end) {
			return
		}
		race(round)
	}
}

func firstAcquisitions(f *fixture) {
	instances := []*instance{f.instance("a"), f.instance("b"), f.instance("c")}
	f.rounds(100, func(round int) {
		key := fmt.Sprintf("first:%d", round)
		var mu sync.Mutex
		var granted []store.Ask
		var tokens []int64
		try := func(in *instance) func() error {
			ask := in.ask(key)
			return func() error {
				answers, err := in.Acquire(f.Context(), []store.Ask{ask})
				if err != nil || len(answers) != 1 {
					return fmt.Errorf("acquire: %d answers, %w", len(answers), err)
				}
				mu.Lock()
				defer mu.Unlock()
				if answers[0].Outcome == store.Granted {
					granted, tokens = append(granted, ask), append(tokens, answers[0].Token)
				}
				return nil
			}
		}
		var tries []func() error
		for i := range 9 {
			tries = append(tries, try(instances[i%3]))
		}
		f.together(tries...)
		if len(granted) != 1 {
			f.Fatalf("%d of %d attempts got one key: tokens %d", len(granted), len(tries), tokens)
		}
		instances[0].holds(key, tokens[0], 0)
		instances[0].released(claim(granted[0], tokens[0]))
		if next := instances[1].granted(instances[1].ask(key)); next.Token <= tokens[0] {
			f.Fatalf("token %d after %d", next.Token, tokens[0])
		}
	})
}

// cancelMeetsGrant cancels the first of two waiters while the holder releases. One of the two
// waiters gets the key.
func cancelMeetsGrant(f *fixture) {
	a, b := f.pair()
	f.rounds(300, func(int) {
		holder, first, second := a.ask("k"), b.ask("k"), a.ask("k")
		last := a.granted(holder).Token
		b.queued(first, 1)
		a.queued(second, 2)
		var cancelled store.Answer
		f.together(
			func() error {
				_, err := a.Release(f.Context(), []store.Claim{claim(holder, last)})
				return err
			},
			func() error {
				answers, err := b.Cancel(f.Context(), []store.Attempt{first.Attempt})
				if err == nil {
					cancelled = answers[0]
				}
				return err
			},
		)
		if cancelled.Outcome == store.Granted {
			b.want(cancelled, store.Granted)
			b.holds("k", cancelled.Token, 1)
			last = cancelled.Token
			b.released(claim(first, last))
		} else {
			b.want(cancelled, store.Gone)
		}
		grant := a.awaitNews(second)
		if grant.Token <= last {
			f.Fatalf("token %d after %d", grant.Token, last)
		}
		b.want(b.check(first), store.Gone)
		a.released(claim(second, grant.Token))
		a.free("k")
	})
}

// reapMeetsQueue reaps the leases of the holder and of the first waiter while the second waiter
// cancels. The third waiter must get the key.
func reapMeetsQueue(f *fixture) {
	a, b := f.pair()
	f.rounds(150, func(int) {
		holding, waiting := a.openLease(longTTL), b.openLease(longTTL)
		holder, first := a.askUnder(holding, "k"), b.askUnder(waiting, "k")
		second, third := a.ask("k"), b.ask("k")
		last := a.granted(holder).Token
		b.queued(first, 1)
		a.queued(second, 2)
		b.queued(third, 3)
		var cancelled store.Answer
		f.together(
			func() error { return a.Revoke(f.Context(), []store.LeaseID{holding}) },
			func() error { return b.Revoke(f.Context(), []store.LeaseID{waiting}) },
			func() error {
				_, err := a.Release(f.Context(), []store.Claim{claim(holder, last)})
				return err
			},
			func() error {
				answers, err := a.Cancel(f.Context(), []store.Attempt{second.Attempt})
				if err == nil {
					cancelled = answers[0]
				}
				return err
			},
		)
		if cancelled.Outcome == store.Granted {
			a.released(claim(second, cancelled.Token))
		}
		grant := b.awaitNews(third)
		if grant.Token <= last {
			f.Fatalf("token %d after %d", grant.Token, last)
		}
		b.want(b.check(first), store.Gone)
		b.released(claim(third, grant.Token))
		a.free("k")
	})
}

// enqueueMeetsRelease enqueues a waiter while the holder's lock is released or reaped.
func enqueueMeetsRelease(f *fixture) {
	a, b := f.pair()
	f.rounds(300, func(round int) {
		lease := a.openLease(longTTL)
		holder, waiter := a.askUnder(lease, "k"), b.ask("k")
		last := a.granted(holder).Token
		var answer store.Answer
		f.together(
			func() error {
				if round%2 == 0 {
					return a.Revoke(f.Context(), []store.LeaseID{lease})
				}
				_, err := a.Release(f.Context(), []store.Claim{claim(holder, last)})
				return err
			},
			func() error {
				answers, err := b.Enqueue(f.Context(), []store.Ask{waiter})
				if err == nil {
					answer = answers[0]
				}
				return err
			},
		)
		if answer.Outcome != store.Granted {
			b.want(answer, store.Queued)
			answer = b.awaitNews(waiter)
		}
		b.holds("k", answer.Token, 0)
		b.released(claim(waiter, answer.Token))
		a.free("k")
	})
}

// repetitionsMeet repeats an attempt that is in progress.
func repetitionsMeet(f *fixture) {
	a, b := f.pair()
	f.rounds(100, func(round int) {
		key := fmt.Sprintf("again:%d", round%10)
		ask := a.askTTL(key, longTTL)
		answers := make([]store.Answer, 6)
		var tries []func() error
		for i := range answers {
			in := []*instance{a, b}[i%2]
			tries = append(tries, func() error {
				got, err := in.Acquire(f.Context(), []store.Ask{ask})
				if err == nil {
					answers[i] = got[0]
				}
				return err
			})
		}
		f.together(tries...)
		for _, answer := range answers {
			if answer.Outcome != store.Granted || answer.Token != answers[0].Token {
				f.Fatalf("one attempt got %+v\nand %+v", answers[0], answer)
			}
		}
		a.released(claim(ask, answers[0].Token))
	})
}

// stormKey checks one key by what its holders do.
type stormKey struct {
	name   string
	inside atomic.Int32
	last   atomic.Int64
}

// enter is called by a holder; it errs when somebody else is inside, or has been
// with a later token.
func (k *stormKey) enter(token int64) error {
	if n := k.inside.Add(1); n != 1 {
		return fmt.Errorf("%d holders of %s", n, k.name)
	}
	if last := k.last.Swap(token); last >= token {
		return fmt.Errorf("%s: token %d after %d", k.name, token, last)
	}
	return nil
}

func (k *stormKey) leave() { k.inside.Add(-1) }

func storm(f *fixture) { stormOf(f, false) }

// stormOf lets workers of three instances acquire, wait, cancel and release a few keys as fast as
// they can. Afterwards the keys must be free. With outcomes, some attempts are skip-waiters and
// some releases report a success.
func stormOf(f *fixture, outcomes bool) {
	const (
		workers = 4 // of each instance
		enough  = 3000
		least   = 60
	)
	keys := []*stormKey{{name: "s:0"}, {name: "s:1"}, {name: "s:2"}, {name: "s/3"}}
	instances := []*instance{f.instance("a"), f.instance("b"), f.instance("c")}
	var grants atomic.Int64
	var failed atomic.Bool
	end := time.Now().Add(raceTime)
	var granted atomic.Int64 // when the last grant came, in nanoseconds since 1970
	granted.Store(time.Now().UnixNano())
	var run []func() error
	for i := range workers * len(instances) {
		w := &stormWorker{in: instances[i%len(instances)], seed: uint32(i + 1), outcomes: outcomes}
		run = append(run, func() error {
			for !failed.Load() && (grants.Load() < least || grants.Load() < enough && time.Now().Before(end)) {
				got, err := w.round(f.Context(), keys[w.random(len(keys))])
				if err != nil {
					failed.Store(true)
					return err
				}
				if got > 0 {
					granted.Store(time.Now().UnixNano())
				}
				if time.Since(time.Unix(0, granted.Load())) > patience {
					return fmt.Errorf("no grant for %v after %d", patience, grants.Load())
				}
				grants.Add(got)
			}
			return nil
		})
	}
	f.together(run...)
	f.Logf("%d grants", grants.Load())
	for _, k := range keys {
		in := instances[0]
		in.free(k.name)
		if got := in.granted(in.ask(k.name)); got.Token <= k.last.Load() {
			f.Errorf("%s: token %d after %d", k.name, got.Token, k.last.Load())
		}
	}
}

type stormWorker struct {
	in       *instance
	seed     uint32
	outcomes bool
}

// random is a small xorshift. Every worker has its own and can repeat it.
func (w *stormWorker) random(n int) int {
	w.seed ^= w.seed << 13
	w.seed ^= w.seed >> 17
	w.seed ^= w.seed << 5
	return int(w.seed>>1) % n
}

// round tries to get a key in one of several ways, and releases it. It returns the number of its
// grants.
func (w *stormWorker) round(ctx context.Context, key *stormKey) (int64, error) {
	ask := w.in.ask(key.name)
	ask.Skip = w.outcomes && w.random(3) == 0
	how := w.in.Acquire
	if w.random(4) != 0 {
		how = w.in.Enqueue
	}
	answers, err := how(ctx, []store.Ask{ask})
	if err != nil {
		return 0, fmt.Errorf("ask: %w", err)
	}
	answer := answers[0]
	if answer.Outcome == store.Queued {
		if answer, err = w.wait(ctx, ask); err != nil {
			return 0, err
		}
	}
	switch answer.Outcome {
	case store.Granted:
	case store.Held, store.Gone:
		return 0, nil
	case store.Skipped:
		return 0, w.forget(ctx, ask)
	default:
		return 0, fmt.Errorf("outcome %s of %s", name(answer.Outcome), key.name)
	}
	if err := key.enter(answer.Token); err != nil {
		return 0, err
	}
	runtime.Gosched() // lets other workers in if exclusion is broken
	key.leave()
	c := claim(ask, answer.Token)
	if w.outcomes && w.random(2) == 0 {
		c.Outcome = store.Success
	}
	verdicts, err := w.in.Release(ctx, []store.Claim{c})
	if err != nil {
		return 0, fmt.Errorf("release: %w", err)
	}
	if verdicts[0].Status != store.Holds {
		return 0, fmt.Errorf("release of a held lock: %s", standing(verdicts[0].Status))
	}
	return 1, nil
}

// forget cancels a skipped waiter, and checks that the store has forgotten it.
func (w *stormWorker) forget(ctx context.Context, ask store.Ask) error {
	if !ask.Skip {
		return fmt.Errorf("skipped, but wanted the lock: %s", ask.Key)
	}
	if _, err := w.in.Cancel(ctx, []store.Attempt{ask.Attempt}); err != nil {
		return fmt.Errorf("cancel: %w", err)
	}
	answers, err := w.in.Check(ctx, []store.Attempt{ask.Attempt})
	if err == nil && answers[0].Outcome != store.Gone {
		err = fmt.Errorf("a forgotten waiter has the outcome %s", name(answers[0].Outcome))
	}
	return err
}

// wait waits for news, sometimes for too short a time, and then cancels.
func (w *stormWorker) wait(ctx context.Context, ask store.Ask) (store.Answer, error) {
	limit := time.NewTimer(time.Duration(w.random(20)) * time.Millisecond)
	defer limit.Stop()
	select {
	case n := <-w.in.newsOf(ask.ID):
		return n.Answer, nil
	case <-limit.C:
	}
	answers, err := w.in.Cancel(ctx, []store.Attempt{ask.Attempt})
	if err != nil {
		return store.Answer{}, fmt.Errorf("cancel: %w", err)
	}
	return answers[0], nil
}
