package cas_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/cas"
	"github.com/locksidecar/locksidecar/store/cas/fake"
)

// hot is a key that two callers of one instance take in turns, or share if it has a limit, without a pause, until the test ends.
type hot struct {
	near *instance
	stop chan struct{}
	work sync.WaitGroup

	mu     sync.Mutex
	grants int
}

func makeHot(near *instance, limit int) *hot {
	h := &hot{near: near, stop: make(chan struct{})}
	for range 2 {
		h.work.Go(func() {
			for {
				select {
				case <-h.stop:
					return
				default:
					ask := near.ask("k")
					ask.Shared, ask.Limit = limit > 0, limit
					near.releases(ask, near.awaits(ask), store.Holds)
					h.mu.Lock()
					h.grants++
					h.mu.Unlock()
				}
			}
		})
	}
	return h
}

func (h *hot) ends() {
	close(h.stop)
	h.work.Wait()
}

func (h *hot) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.grants
}

// awaits makes an attempt, and returns its grant.
func (in *instance) awaits(ask store.Ask) store.Answer {
	in.Helper()
	answers, err := in.Enqueue(in.Context(), []store.Ask{ask})
	for in.ok(err); answers[0].Outcome == store.Queued; in.ok(err) {
		time.Sleep(100 * time.Microsecond)
		answers, err = in.Check(in.Context(), []store.Attempt{ask.Attempt})
	}
	if answers[0].Outcome != store.Granted {
		in.Fatalf("outcome %d", answers[0].Outcome)
	}
	return answers[0]
}

// TestAFarInstanceIsServed: an instance whose swaps always come later than those of one that is nearer gets its place in the queue,
// and can release, after few grants to others. These are made in four of its round trips: one reads, two swaps lose, and the next one
// goes beside the letter. 227 runs made at most 7, 22 and 90. Each time that nobody is asked costs three more round trips.
// Proves: promise 5
func TestAFarInstanceIsServed(t *testing.T) {
	const slowest = 150 * time.Millisecond
	for _, limit := range []int{0, 2, 3} { // exclusive; one fewer than all callers; nobody has to wait
		for far, most := range map[time.Duration]int{100 * time.Microsecond: 15, time.Millisecond: 40, 5 * time.Millisecond: 150} {
			pair(t, cas.Config{}, func(_ *fake.Server, a, b *instance) {
				a.far, b.far = 100*time.Microsecond, far
				h := makeHot(a, limit)
				passed, longest := 0, time.Duration(0)
				for range 20 {
					ask := b.ask("k")
					ask.Shared, ask.Limit = limit > 0, limit
					for _, do := range []func(){
						func() {
							_, err := b.Enqueue(b.Context(), []store.Ask{ask}) // granted, or queued
							b.ok(err)
						},
						func() {
							b.releases(ask, b.awaits(ask), store.Holds)
						},
					} {
						before, began := h.count(), time.Now()
						do()
						passed, longest = max(passed, h.count()-before), max(longest, time.Since(began))
					}
				}
				h.ends()
				if passed > most || longest > slowest {
					t.Errorf("limit %d, %s away: %d grants of others during one call, which took %s", limit, far, passed, longest)
				}
			})
		}
	}
}

// TestARefusedSwapIsTriedAgainAtOnce: the answer to a refused swap is the present record, so no pause comes before the next try.
// Proves: promise 5
func TestARefusedSwapIsTriedAgainAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := fake.NewServer()
		var all []*instance
		for _, name := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
			in := start(t, server, store.Identity{Namespace: "n", Instance: name, Pod: "p"}, cas.Config{})
			in.far = time.Millisecond
			all = append(all, in)
		}
		began := time.Now()
		var work sync.WaitGroup
		for _, in := range all {
			work.Go(func() {
				_, err := in.Enqueue(in.Context(), []store.Ask{in.ask("k")})
				in.ok(err)
			})
		}
		work.Wait()
		if took, trips := time.Since(began), time.Duration(len(all))*2*time.Millisecond; took > trips {
			t.Errorf("%d instances were queued in %s, want %s: a round trip each", len(all), took, trips)
		}
	})
}

// TestWayIsGivenForAMoment: whoever is asked to give way leaves only this key alone, and not for longer than longestWay, whatever the
// letter says.
// Proves: promise 5
func TestWayIsGivenForAMoment(t *testing.T) {
	pair(t, cas.Config{}, func(server *fake.Server, a, b *instance) {
		body := cas.AskForWay(time.Hour, 3)
		c := server.Open("c", fake.Faults{})
		a.ok(c.Start(a.Context(), func(cas.Letter) {}, func() {}))
		defer c.Stop()
		a.ok(c.Post(a.Context(), []cas.Letter{{To: "a", Key: "n/k", Body: body}}))
		synctest.Wait()
		for key, want := range map[string]time.Duration{"other": 0, "k": cas.LongestWay} {
			began := time.Now()
			a.gets(a.ask(key), store.Granted)
			if took := time.Since(began); took != want {
				t.Errorf("key %q: after %s, want %s", key, took, want)
			}
		}
		a.ok(c.Post(a.Context(), []cas.Letter{{To: "a", Key: "n/k", Body: body}}))
		synctest.Wait()
		began := time.Now()
		answers, err := a.Enqueue(a.Context(), []store.Ask{a.ask("k"), a.ask("free")})
		if a.ok(err); answers[0].Outcome != store.Queued || answers[1].Outcome != store.Granted || time.Since(began) != cas.LongestWay {
			t.Errorf("two keys, of which one gives way: %+v after %s", answers, time.Since(began))
		}
		if len(a.told())+len(b.told()) > 0 {
			t.Error("the letter is told as news")
		}
	})
}

// TestNobodyGivesWayForEver: however often others ask, a release, a withdrawal or another job comes through in the end.
// Proves: promise 5
func TestNobodyGivesWayForEver(t *testing.T) {
	pair(t, cas.Config{}, func(server *fake.Server, a, _ *instance) {
		c := server.Open("c", fake.Faults{})
		a.ok(c.Start(a.Context(), func(cas.Letter) {}, func() {}))
		defer c.Stop()
		ask := a.ask("k")
		grant := a.gets(ask, store.Granted)
		stop := make(chan struct{})
		var asking sync.WaitGroup
		asking.Go(func() {
			for {
				a.ok(c.Post(context.Background(), []cas.Letter{{To: "a", Key: "n/k", Body: cas.AskForWay(time.Hour, 1000)}}))
				select {
				case <-stop:
					return
				case <-time.After(cas.LongestWay / 3):
				}
			}
		})
		synctest.Wait()
		began := time.Now()
		a.releases(ask, grant, store.Holds)
		if took := time.Since(began); took != cas.AllWays {
			t.Errorf("released after %s, want %s", took, cas.AllWays)
		}
		close(stop)
		asking.Wait()
	})
}

// TestManyThatComeTogetherAskForNoWay: if many instances want a key at the same time, each loses to those that come before it, but to
// none of them again and again.
func TestManyThatComeTogetherAskForNoWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := fake.NewServer()
		all := make([]*instance, 30)
		for i := range all {
			all[i] = start(t, server, store.Identity{Namespace: "n", Instance: fmt.Sprint(i), Pod: "p"}, cas.Config{})
			all[i].far = time.Millisecond
		}
		var work sync.WaitGroup
		for _, in := range all {
			work.Go(func() {
				_, err := in.Enqueue(in.Context(), []store.Ask{in.ask("k")})
				in.ok(err)
			})
		}
		work.Wait()
		posts := 0
		for _, in := range all {
			posts += strings.Count(in.made(), "Post")
		}
		if posts > len(all)/10 {
			t.Errorf("%d instances that wanted a key once asked %d times for way", len(all), posts)
		}
	})
}

// TestACrowdSparesTheServer: if many instances want a key at the same time, only one of the swaps that are under way comes through. The
// requests of all grow much less than with the square of their number, and the time no more than with their number.
func TestACrowdSparesTheServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const far = time.Millisecond
		server := fake.NewServer()
		all := make([]*instance, 150)
		for i := range all {
			all[i] = start(t, server, store.Identity{Namespace: "n", Instance: fmt.Sprint(i), Pod: "p"}, cas.Config{})
			all[i].far = far
		}
		began := time.Now()
		var work sync.WaitGroup
		for _, in := range all {
			work.Go(func() {
				_, err := in.Enqueue(in.Context(), []store.Ask{in.ask("k")})
				in.ok(err)
			})
		}
		work.Wait()
		took, requests := time.Since(began), 0
		for _, in := range all {
			requests += len(strings.Fields(in.made()))
		}
		if n := len(all); requests > 30*n || took > time.Duration(2*n)*2*far {
			t.Errorf("%d instances were queued after %d requests and %s, want at most %d for each, and two round trips", n, requests, took, 30)
		}
	})
}

// outrun is a backend before whose first swaps another instance changes the record, and whose posted letters hang.
type outrun struct {
	*fake.Backend
	swaps  int
	before func()
}

func (o *outrun) Swap(ctx context.Context, swaps []cas.Swap) ([]cas.Swapped, error) {
	if o.swaps > 0 {
		o.swaps--
		o.before()
	}
	return o.Backend.Swap(ctx, swaps)
}

func (o *outrun) Post(ctx context.Context, _ []cas.Letter) error {
	<-ctx.Done()
	return ctx.Err()
}

// beaten is a backend before whose next swaps somebody else takes and releases the key. asked are those whom letters ask for way.
type beaten struct {
	*fake.Backend
	by    []func()
	mu    sync.Mutex
	asked []string
}

func (b *beaten) Swap(ctx context.Context, swaps []cas.Swap) ([]cas.Swapped, error) {
	if len(b.by) > 0 {
		time.Sleep(time.Millisecond)
		next := b.by[0]
		b.by = b.by[1:]
		others := b.by
		b.by = nil
		next()
		b.by = others
	}
	return b.Backend.Swap(ctx, swaps)
}

func (b *beaten) Post(_ context.Context, letters []cas.Letter) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, l := range letters {
		b.asked = append(b.asked, l.To)
	}
	return nil
}

// TestARivalOfAFreeKeyIsAsked: an instance that finds the key free each time, and loses nevertheless, knows whom to ask for way. If it
// lost to another call of its own before, there was nobody to ask, and it need not wait after that.
// Proves: promise 5
func TestARivalOfAFreeKeyIsAsked(t *testing.T) {
	for _, shared := range []bool{false, true} {
		for _, own := range []int{0, 2} {
			pair(t, cas.Config{}, func(server *fake.Server, a, _ *instance) {
				o := &beaten{Backend: server.Open("c", fake.Faults{})}
				c := &instance{T: a.T, Store: cas.NewSpace(fake.Only(o), cas.Config{}).View(store.Identity{Namespace: "n", Instance: "c"}).(*cas.Store)}
				defer c.Stop()
				a.ok(c.Start(a.Context(), nil))
				c.lease = c.open(time.Hour)
				uses := func(in *instance) func() {
					return func() {
						ask := in.ask("k")
						ask.Shared = shared
						in.releases(ask, in.gets(ask, store.Granted), store.Holds)
					}
				}
				for range own {
					o.by = append(o.by, uses(c))
				}
				for range 2 {
					o.by = append(o.by, uses(a))
				}
				uses(c)()
				if !slices.Equal(o.asked, []string{"a"}) {
					t.Errorf("shared %v, %d swaps lost to own calls, 2 to a: %q were asked for way, want a once", shared, own, o.asked)
				}
			})
		}
	}
}

// TestALetterThatHangsDoesNotKeepASwap: the letters that ask for way may go to another server than the swap, which hangs.
func TestALetterThatHangsDoesNotKeepASwap(t *testing.T) {
	pair(t, cas.Config{}, func(server *fake.Server, a, _ *instance) {
		o := &outrun{Backend: server.Open("c", fake.Faults{}), swaps: 4, before: func() {
			ask := a.ask("k")
			ask.Shared = true
			a.gets(ask, store.Granted)
		}}
		s := cas.NewSpace(fake.Only(o), cas.Config{}).View(store.Identity{Namespace: "n", Instance: "c"}).(*cas.Store)
		defer s.Stop()
		a.ok(s.Start(a.Context(), nil))
		lease := uuid.New()
		a.ok(s.OpenLeases(a.Context(), []store.NewLease{{ID: lease, TTL: time.Hour}}))
		began := time.Now()
		answers, err := s.Acquire(a.Context(), []store.Ask{{Attempt: store.Attempt{Key: "k", ID: uuid.New()}, Lease: lease, Shared: true}})
		a.ok(err)
		if took := time.Since(began); answers[0].Outcome != store.Granted || took > 3*cas.LongestWay {
			t.Errorf("%+v after %s", answers[0], took)
		}
	})
}
