package storetest

import (
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/store"
)

// some is the number of locks in a counted line. Lines of other tests have mostly one lock, so they
// do not push this line off the list.
const some = 6

func fleetCases() []testCase {
	return []testCase{
		{"locks are counted by type and by pod within their namespace", countedByType},
		{"waiters are counted by type", func(f *fixture) {
			a, b := f.pair()
			ask := a.holdSome("job:")
			waiters := []store.Ask{b.ask(ask.Key), b.ask(ask.Key), a.ask(ask.Key)}
			for i, in := range []*instance{b, b, a} {
				in.queued(waiters[i], i+1)
			}
			if got := a.typeLine("job"); got.Held != some || got.Waiting != 3 {
				f.Errorf("counted %+v", got)
			}
			for _, line := range a.stats().Pods {
				if line.Waiting != 0 {
					f.Errorf("a pod is counted as a waiter: %+v", line)
				}
			}
			b.gaveUp(b.cancel(waiters[0]), 1)
			if got := a.typeLine("job"); got.Waiting != 2 {
				f.Errorf("counted %+v", got)
			}
		}},
		{"a waiter that was skipped is not counted", func(f *fixture) {
			a, b := f.pair()
			ask := a.holdSome("job:")
			done := a.ask("job:once")
			c := claim(done, a.granted(done).Token)
			c.Outcome = store.Success
			skips, waits := b.ask(done.Key), b.ask(ask.Key)
			skips.Skip = true
			b.queued(skips, 1)
			b.queued(waits, 1)
			a.released(c)
			b.want(b.check(skips), store.Skipped)
			if got := a.typeLine("job"); got.Held != some || got.Waiting != 1 {
				f.Errorf("counted %+v", got)
			}
		}},
		{"released and dead locks are not counted", func(f *fixture) {
			a, b := f.pair()
			kept, freed, dead := a.ask("job:kept"), a.ask("job:freed"), a.askUnder(a.openLease(longTTL), "job:dead")
			a.holdSome("job:")
			a.granted(kept)
			token := a.granted(freed).Token
			a.granted(dead)
			if got := b.typeLine("job"); got.Held != some+3 {
				f.Errorf("counted %+v", got)
			}
			a.released(claim(freed, token))
			a.revoke(dead.Lease)
			if got := b.typeLine("job"); got.Held != some+1 || got.Expired != 0 {
				f.Errorf("counted %+v", got)
			}
		}},
		{"an expired lock is counted as expired until it is reaped", func(f *fixture) {
			a, b := f.pair()
			a.holdSome("job:")
			ask, _ := a.shortHold("job:short")
			a.awaitExpiry(ask.Lease, shortTTL)
			got := b.typeLine("job")
			if got.Held != some || got.Expired != 1 {
				f.Errorf("counted %+v", got)
			}
			if got := b.podLine("pod-a"); got.Held != some || got.Expired != 1 {
				f.Errorf("counted %+v", got)
			}
			b.revoke(ask.Lease)
			if got := b.typeLine("job"); got.Held != some || got.Expired != 0 {
				f.Errorf("counted %+v", got)
			}
		}},
		{"a lock that a hold keeps is counted as held", func(f *fixture) {
			a, b := f.pair()
			a.holdSome("job:")
			ask := a.askUnder(a.openLease(longTTL), "job:hold")
			ask.MinHold = longTTL
			a.released(claim(ask, a.granted(ask).Token))
			if got := b.typeLine("job"); got.Held != some+1 || got.Expired != 0 {
				f.Errorf("counted %+v", got)
			}
		}},
		{"the average and the longest time match how long the locks were held", func(f *fixture) {
			a := f.instance("a")
			ask := a.holdSome("job:")
			a.poll("some holding", func() bool { return a.get(ask.Key).Holder.HeldFor > pause })
			before := a.get(ask.Key).Holder.HeldFor
			got := a.typeLine("job")
			after := a.get(ask.Key).Holder.HeldFor
			// The lock of the last ask was acquired last.
			if got.Longest < before || got.Average < before-time.Millisecond || got.Average > got.Longest || got.Longest > after+patience {
				f.Errorf("counted %+v, the last of them was held for %v to %v", got, before, after)
			}
		}},
		{"one instance is elected until its term is over or it resigns", elections},
	}
}

// holdSome acquires keys under a prefix and returns the last ask.
func (in *instance) holdSome(prefix string) (ask store.Ask) {
	in.Helper()
	for i := range some {
		ask = in.ask(fmt.Sprintf("%ssome-%d", prefix, i))
		in.granted(ask)
	}
	return ask
}

func (in *instance) stats() store.Stats {
	in.Helper()
	found, err := in.Stats(in.ctx())
	if err != nil {
		in.Fatalf("Stats: %v", err)
	}
	for _, lines := range [][]store.Stat{found.Types, found.Pods} {
		for i, line := range lines {
			if line.Name != store.Others && i > 0 && line.Held > lines[i-1].Held {
				in.Fatalf("line %+v comes after %+v", line, lines[i-1])
			}
		}
	}
	return found
}

// typeLine and podLine return a line of the test's namespace, or zero.
func (in *instance) typeLine(name string) store.Stat {
	in.Helper()
	return in.line(in.stats().Types, name)
}

func (in *instance) podLine(name string) store.Stat {
	in.Helper()
	return in.line(in.stats().Pods, name)
}

func (in *instance) line(lines []store.Stat, name string) (found store.Stat) {
	in.Helper()
	for _, l := range lines {
		if l.Namespace != in.id.Namespace || l.Name != name {
			continue
		}
		if found.Name != "" || found.Held != 0 {
			in.Fatalf("two lines of %q", name)
		}
		found = l
	}
	return found
}

func countedByType(f *fixture) {
	a, b := f.pair()
	elsewhere := f.instanceIn("other-"+uuid.NewString(), "a")
	for _, prefix := range []string{"", "job:", "job:a:b:", ":", "report:"} {
		a.holdSome(prefix)
	}
	for i := range some {
		b.granted(b.askTTL(fmt.Sprintf("job:ttl-%d", i), longTTL))
	}
	elsewhere.holdSome("job:")
	for name, want := range map[string]int64{"": 2 * some, "job": 3 * some, "report": some, "other": 0} {
		if got := a.typeLine(name); got.Held != want || got.Expired != 0 || got.Waiting != 0 {
			f.Errorf("type %q: %+v, want %d held", name, got, want)
		}
	}
	for name, want := range map[string]int64{"pod-a": 5 * some, "pod-b": some} {
		if got := b.podLine(name); got.Held != want {
			f.Errorf("pod %q: %+v, want %d held", name, got, want)
		}
	}
	for _, in := range []*instance{a, elsewhere} {
		found := in.stats() // the counts of all namespaces
		if got := elsewhere.line(found.Types, "job"); got.Held != some {
			f.Errorf("in the other namespace: %+v", got)
		}
	}
}

// elections is the only test that elects, because all users of the data share one election.
func elections(f *fixture) {
	a, b := f.pair()
	elsewhere := f.instanceIn("other-"+uuid.NewString(), "c")
	elect := func(in *instance, term time.Duration) store.Election {
		f.Helper()
		e, err := in.Elect(in.ctx(), term)
		if err != nil || e.Left < 0 {
			f.Fatalf("Elect: %+v, %v", e, err)
		}
		return e
	}
	lost := func(in *instance, term, atLeast, atMost time.Duration) {
		f.Helper()
		if e := elect(in, term); e.Elected || e.Left <= atLeast || e.Left > atMost {
			f.Fatalf("got %+v, want another instance elected for %v to %v", e, atLeast, atMost)
		}
	}
	won := func(in *instance, term time.Duration) {
		f.Helper()
		if e := elect(in, term); !e.Elected || e.Left <= 0 || e.Left > term {
			f.Fatalf("got %+v, want this instance elected for %v", e, term)
		}
	}
	f.poll("the end of an earlier run's term", func() bool { return elect(a, longTTL).Elected })

	lost(b, longTTL, longTTL-patience, longTTL)
	lost(elsewhere, longTTL, longTTL-patience, longTTL)
	won(a, 2*longTTL) // a longer term from now on
	lost(b, longTTL, 2*longTTL-patience, 2*longTTL)
	lost(b, 0, 2*longTTL-patience, 2*longTTL) // b is not elected, so b cannot resign
	lost(b, longTTL, 2*longTTL-patience, 2*longTTL)

	for range 2 { // repeated
		if e := elect(a, 0); e.Elected || e.Left != 0 {
			f.Fatalf("still elected: %+v", e)
		}
	}
	won(b, longTTL)
	lost(a, 0, longTTL-patience, longTTL)
	won(b, shortTTL)
	f.poll("the end of the term", func() bool { return elect(a, longTTL).Elected })
	lost(b, longTTL, longTTL-patience, longTTL)

	elect(a, 0)
	racers := []*instance{a, b, elsewhere}
	for range 10 {
		results := make([]store.Election, len(racers))
		var group sync.WaitGroup
		for i, in := range racers {
			group.Go(func() { results[i], _ = in.Elect(in.ctx(), longTTL) })
		}
		group.Wait()
		elected := -1
		for i, e := range results {
			if e.Left <= longTTL-patience {
				f.Errorf("got %+v: no instance seems to be elected", e)
			}
			if e.Elected && elected >= 0 {
				f.Fatal("two instances were elected")
			}
			if e.Elected {
				elected = i
			}
		}
		if elected < 0 {
			f.Fatal("no instance was elected")
		}
		elect(racers[elected], 0)
	}
}
