package storetest

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/store"
)

const (
	// fairGrants and fairTime are how many grants a contest has at least, and how long it takes.
	fairGrants, fairTime = 400, 500 * time.Millisecond
	// fairPart is which part of them may go to others from a call to its place in the queue. Callers are queued after a few grants, or
	// after a pause of the machine. An instance that starves waits for most of them.
	fairPart = 2
)

// Proves: promise 5
func fairCases() []testCase {
	exclusive := func(*store.Ask) {}
	permit := func(a *store.Ask) { a.Shared, a.Limit = true, 2 }
	return []testCase{
		{"an instance that wants a key all the time keeps no other one out of the queue", func(f *fixture) { contend(f, exclusive) }},
		{"an instance that wants a permit all the time keeps no other one out of the queue", func(f *fixture) { contend(f, permit) }},
	}
}

// contend lets two callers of each of two instances want a key all the time, and hold it for no time. The order of the queue has tests of its
// own, so this is about the way into it. It counts grants, and judges no time.
func contend(f *fixture, as func(*store.Ask)) {
	var grants, most atomic.Int64
	var work sync.WaitGroup
	a, b := f.pair()
	until := time.Now().Add(fairTime)
	for i := range 4 {
		in := []*instance{a, b}[i%2]
		work.Go(func() {
			for (grants.Load() < fairGrants || time.Now().Before(until)) && !f.Failed() {
				ask := in.ask("k")
				as(&ask)
				before := grants.Load()
				answers, err := in.Enqueue(f.Context(), []store.Ask{ask})
				if err != nil {
					f.Errorf("Acquire: %v", err)
					return
				}
				if passed := grants.Load() - before; passed > most.Load() {
					most.Store(passed) // another caller may do so at the same time, which loses little
				}
				answer := answers[0]
				for answer.Outcome == store.Queued && !f.Failed() {
					select {
					case n := <-in.newsOf(ask.ID):
						answer = n.Answer
						continue
					case <-in.hintsOf(ask.ID):
					case <-time.After(pause):
					}
					if answers, err = in.Check(f.Context(), []store.Attempt{ask.Attempt}); err != nil {
						f.Errorf("Check: %v", err)
						return
					}
					answer = answers[0]
				}
				if answer.Outcome != store.Granted {
					f.Errorf("outcome %d", answer.Outcome)
					return
				}
				grants.Add(1)
				if verdicts, err := in.Release(f.Context(), []store.Claim{claim(ask, answer.Token)}); err != nil || verdicts[0].Status != store.Holds {
					f.Errorf("Release: %+v, %v", verdicts, err)
					return
				}
				runtime.Gosched() // a store in this process makes no pause of its own
			}
		})
	}
	work.Wait()
	if all := grants.Load(); most.Load() > all/fairPart {
		f.Errorf("%d of %d grants went to others before a call was queued", most.Load(), all)
	}
}
