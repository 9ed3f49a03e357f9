package fleet

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/internal/testing/logtest"
	"github.com/locksidecar/locksidecar/lease/internal/background"
	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// office is what the stores of a fleet share: the elected instance, and the counts.
type office struct {
	mu     sync.Mutex
	who    string
	until  time.Time
	counts store.Stats
	terms  []time.Duration // requested terms
}

func (o *office) holder() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !time.Now().Before(o.until) {
		return ""
	}
	return o.who
}

// take elects an instance, even if another one is elected.
func (o *office) take(who string, until time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.who, o.until = who, until
}

func (o *office) put(counts store.Stats) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.counts = counts
}

// voter is the store of a sidecar, as a Counter sees it. Its operations can be made to fail.
type voter struct {
	*office
	name string

	mu     sync.Mutex
	faults map[string]fault
	calls  map[string]int
}

// fault is what happens to an operation. forget: the next one is carried out, and its answer is lost.
type fault struct {
	refuse, forget bool
	before         time.Duration
	gate           chan struct{} // delays it
}

func (v *voter) set(op string, f fault) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.faults[op] = f
}

func (v *voter) lift(op string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.faults, op)
}

// hold delays an operation until the returned function is called.
func (v *voter) hold(op string) (unhold func()) {
	gate := make(chan struct{})
	v.set(op, fault{gate: gate})
	return func() {
		v.lift(op)
		close(gate)
	}
}

func (v *voter) count(op string) int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.calls[op]
}

var errBroken = errors.New("broken on purpose")

// do carries out an operation, with its fault.
func do[R any](ctx context.Context, v *voter, op string, f func() R) (r R, err error) {
	v.mu.Lock()
	v.calls[op]++
	what := v.faults[op]
	if what.forget {
		delete(v.faults, op)
	}
	v.mu.Unlock()
	err = clock.Rest(ctx, what.before)
	if what.gate != nil {
		select {
		case <-what.gate:
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	if err != nil {
		return r, &store.Error{Op: op, Err: err, Unknown: true}
	}
	if what.refuse {
		return r, &store.Error{Op: op, Err: errBroken}
	}
	r = f()
	if what.forget {
		return r, &store.Error{Op: op, Err: errBroken, Unknown: true}
	}
	return r, nil
}

func (v *voter) Elect(ctx context.Context, term time.Duration) (store.Election, error) {
	return do(ctx, v, "Elect", func() store.Election {
		v.office.mu.Lock()
		defer v.office.mu.Unlock()
		v.terms = append(v.terms, term)
		now := time.Now()
		switch mine := v.who == v.name; {
		case term == 0 && mine:
			v.until = now
		case term == 0:
		case mine || !now.Before(v.until):
			v.who, v.until = v.name, now.Add(term)
		default:
			return store.Election{Left: v.until.Sub(now)}
		}
		return store.Election{Elected: term > 0, Left: term}
	})
}

func (v *voter) Stats(ctx context.Context) (store.Stats, error) {
	return do(ctx, v, "Stats", func() store.Stats {
		v.office.mu.Lock()
		defer v.office.mu.Unlock()
		return v.counts
	})
}

// sleeper is the clock of the bubble, on a machine that can be suspended.
type sleeper struct{ suspended atomic.Int64 }

func (*sleeper) Now() time.Time                      { return time.Now() }
func (s *sleeper) Suspended(time.Time) time.Duration { return time.Duration(s.suspended.Load()) }

// counter is a sidecar that takes part in the election.
type counter struct {
	t    *testing.T
	f    *Counter
	st   *voter
	clk  *sleeper
	log  *logtest.Log
	stop func()
}

const storeTimeout = 5 * time.Second

func newCounter(t *testing.T, o *office, name string) *counter {
	t.Helper()
	c := &counter{
		t: t, st: &voter{office: o, name: name, faults: map[string]fault{}, calls: map[string]int{}}, clk: &sleeper{}, log: &logtest.Log{},
	}
	ctx, cancel := context.WithCancel(t.Context())
	later := background.New(ctx, c.clk)
	c.f = New(ctx, types.Config{Clock: c.clk, StoreTimeout: storeTimeout, Logger: slog.New(slog.NewTextHandler(c.log, nil))}, c.st, later.Spawn)
	c.stop = func() {
		cancel()
		later.Join()
	}
	t.Cleanup(c.stop)
	return c
}

// look scrapes once, and lets all goroutines settle before and after.
func (c *counter) look() (store.Stats, bool) {
	synctest.Wait()
	defer synctest.Wait()
	return c.f.Current()
}

// scrape looks every 15 seconds for this time.
func (c *counter) scrape(d time.Duration) {
	for until := time.Now().Add(d); time.Now().Before(until); time.Sleep(15 * time.Second) {
		c.look()
	}
}

// shows checks the number of locks in a scrape. A negative number means that the scrape has no such
// metric.
func (c *counter) shows(held int64) {
	c.t.Helper()
	known, ours := c.look()
	got := int64(-1)
	if ours {
		got = 0
		for _, line := range known.Types {
			got += line.Held
		}
	}
	if got != held {
		c.t.Errorf("%s shows %d locks (-1: no metric), want %d", c.st.name, got, held)
	}
}

func (c *counter) asked(op string, want int) {
	c.t.Helper()
	if got := c.st.count(op); got != want {
		c.t.Errorf("%s: %d calls of %s, want %d", c.st.name, got, op, want)
	}
}

func held(n int64) store.Stats {
	return store.Stats{Types: []store.Stat{{Namespace: "n", Name: "t", Held: n}}}
}

// TestFleetWithoutScrapes: a sidecar without scrapes does not take part in elections. When the scrapes
// end, it stops and resigns.
func TestFleetWithoutScrapes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &office{counts: held(3)}
		a := newCounter(t, o, "a")
		time.Sleep(time.Hour)
		a.asked("Elect", 0)
		a.asked("Stats", 0)
		a.shows(-1) // the first scrape only starts the counting
		a.shows(3)
		time.Sleep(watchedFor + 2*interval)
		elections, counts := a.st.count("Elect"), a.st.count("Stats")
		if who := o.holder(); who != "" || counts < 10 {
			t.Errorf("%q is elected, and %d counts were made, without a scrape", who, counts)
		}
		time.Sleep(time.Hour)
		a.asked("Elect", elections)
		a.asked("Stats", counts)
		a.shows(-1) // old counts are not shown
		a.shows(3)
	})
}

// TestFleetOneCounts: one of several sidecars counts, and stays elected. The others ask seldom and
// show nothing.
func TestFleetOneCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &office{counts: held(1)}
		a, b := newCounter(t, o, "a"), newCounter(t, o, "b")
		a.look()
		for range 4 * 60 {
			a.shows(1)
			b.shows(-1)
			time.Sleep(15 * time.Second)
		}
		b.asked("Stats", 0)
		if n := a.st.count("Stats"); n < 59 || n > 61 {
			t.Errorf("%d counts in an hour", n)
		}
		if n := b.st.count("Elect"); n < 10 || n > 16 {
			t.Errorf("the sidecar that is not elected asked %d times in an hour", n)
		}
		o.put(held(7))
		time.Sleep(interval)
		a.shows(7)
	})
}

// TestFleetStop: a sidecar that stops resigns, and another one is elected within a term.
func TestFleetStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &office{counts: held(1)}
		a, b := newCounter(t, o, "a"), newCounter(t, o, "b")
		a.look()
		b.look()
		a.stop()
		if who := o.holder(); who != "" {
			t.Errorf("%q is still elected", who)
		}
		a.shows(-1)
		b.scrape(term + interval)
		b.shows(1)
		if last := o.terms[slices.Index(o.terms, 0):]; len(last) < 2 || last[1] != term {
			t.Errorf("terms %v", o.terms)
		}
	})
}

// TestFleetStopHangs: a store that hangs delays the stop by at most its timeout.
func TestFleetStopHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newCounter(t, &office{}, "a")
		a.look()
		unhold := a.st.hold("Elect")
		began := time.Now()
		a.stop()
		if took := time.Since(began); took != storeTimeout {
			t.Errorf("the stop took %s", took)
		}
		unhold()
	})
}

// TestFleetUnknownElection: an election of unknown outcome may have succeeded, so the sidecar
// resigns.
func TestFleetUnknownElection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &office{}
		a := newCounter(t, o, "a")
		a.st.set("Elect", fault{forget: true})
		a.look()
		a.shows(-1)
		a.asked("Stats", 0)
		if who := o.holder(); who != "a" {
			t.Fatalf("%q is elected", who)
		}
		a.stop()
		if who := o.holder(); who != "" {
			t.Errorf("%q is still elected", who)
		}
	})
}

// TestFleetOfficeLost: metrics are not shown after another instance was elected, or after the term
// if the store does not answer.
func TestFleetOfficeLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &office{counts: held(1)}
		a := newCounter(t, o, "a")
		a.look()
		a.shows(1)
		o.take("b", time.Now().Add(2*term))
		a.scrape(interval)
		a.shows(-1)
		o.take("", time.Time{})
		a.scrape(2*term + interval)
		a.shows(1)

		a.st.set("Elect", fault{refuse: true})
		a.scrape(age*interval - 90*time.Second)
		a.shows(1) // the term is not over, and the counts are not too old
		a.scrape(90 * time.Second)
		a.shows(-1)
		a.st.lift("Elect")
		a.scrape(interval)
		a.shows(1)
	})
}

// TestFleetTells: the log says, once, that a sidecar is elected, and that and why it is not any more.
func TestFleetTells(t *testing.T) {
	const elected, ended = `level=INFO msg="this sidecar is elected`, `level=INFO msg="this sidecar is not elected any more`
	for name, c := range map[string]struct {
		end  func(a *counter)
		want []string
	}{
		"it stops":        {func(a *counter) { a.stop() }, []string{`reason="it resigns, because it stops"`}},
		"nobody reads":    {func(*counter) { time.Sleep(watchedFor + 2*interval) }, []string{`reason="it resigns, because its metrics are not read any more"`}},
		"another is":      {func(a *counter) { a.st.take("b", time.Now().Add(2*term)); a.scrape(term) }, []string{`reason="another sidecar is"`}},
		"the store fails": {func(a *counter) { a.st.set("Elect", fault{refuse: true}); a.scrape(2 * term) }, []string{`reason="its term is over`, errBroken.Error()}},
		"it is silent":    {func(a *counter) { a.st.hold("Elect"); a.scrape(2 * term) }, []string{`reason="its term is over`, "the store has not answered for 5s"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := newCounter(t, &office{}, "a")
				a.scrape(3 * term)
				if log := a.log.String(); strings.Count(log, elected) != 1 || strings.Contains(log, ended) {
					t.Errorf("not told once that it is elected:\n%s", log)
				}
				a.log.Forget()
				c.end(a)
				for _, want := range append(c.want, ended) {
					if log := a.log.String(); strings.Count(log, want) != 1 || strings.Contains(log, elected) {
						t.Errorf("not told once, %s:\n%s", want, log)
					}
				}
			})
		})
	}
}

// TestFleetSuspended: the term ends during a suspension, though timers stop. Another sidecar may be
// elected meanwhile, so the counts of this one are not shown.
func TestFleetSuspended(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &office{counts: held(1)}
		a := newCounter(t, o, "a")
		a.look()
		a.shows(1)
		a.clk.suspended.Add(int64(time.Hour))
		o.take("b", time.Now().Add(term))
		a.shows(-1)
		o.take("", time.Time{})
		a.scrape(term)
		a.shows(1)
	})
}

// TestFleetLongTerm: the database's clock may be wrong and return a term that is longer than the
// requested one. The sidecar does not wait for its end.
func TestFleetLongTerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &office{counts: held(1)}
		o.take("b", time.Now().Add(24*time.Hour))
		a := newCounter(t, o, "a")
		a.scrape(time.Minute)
		o.take("", time.Time{})
		a.scrape(term + interval)
		a.shows(1)
	})
}

// TestFleetTermOver: after slow counting, counts are shown for longer, but not beyond the term.
func TestFleetTermOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newCounter(t, &office{counts: held(1)}, "a")
		a.st.set("Stats", fault{before: 4 * time.Second}) // its counts are shown for twenty minutes
		a.look()
		time.Sleep(4 * time.Second)
		a.shows(1)
		a.st.set("Elect", fault{refuse: true})
		a.scrape(term - 15*time.Second)
		a.shows(1)
		a.scrape(15 * time.Second)
		a.shows(-1)
	})
}

// TestFleetSlowCounting: counting takes at most 1% of the time, and the sidecar stays elected.
func TestFleetSlowCounting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const took = 4 * time.Second
		o := &office{counts: held(1)}
		a := newCounter(t, o, "a")
		a.st.set("Stats", fault{before: took})
		a.look()
		time.Sleep(took)
		for range 4 * 60 {
			a.shows(1)
			if o.holder() != "a" {
				t.Fatalf("no longer elected after %d counts", a.st.count("Stats"))
			}
			time.Sleep(15 * time.Second)
		}
		if n := a.st.count("Stats"); n < 8 || n > 10 {
			t.Errorf("%d counts in an hour", n)
		}
	})
}

// TestFleetOldFigures: counts older than three intervals are not shown.
func TestFleetOldFigures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newCounter(t, &office{counts: held(1)}, "a")
		a.look()
		a.st.set("Stats", fault{refuse: true})
		a.scrape(age*interval - 15*time.Second)
		a.shows(1)
		a.scrape(15 * time.Second)
		a.shows(-1)
		if n := a.st.count("Stats"); n < 3 {
			t.Errorf("%d counts: no further try", n)
		}
		if n := strings.Count(a.log.String(), "level=WARN msg=\"the fleet's locks cannot be counted"); n != 1 {
			t.Errorf("logged %d times that the counting fails, want once:\n%s", n, a.log.String())
		}
		a.st.lift("Stats")
		a.scrape(interval)
		a.shows(1)
		if !strings.Contains(a.log.String(), "counted again") {
			t.Errorf("the log does not report that counting works again:\n%s", a.log.String())
		}
	})
}

// TestFleetNeverBlocks: a scrape returns at once, even if the store hangs.
func TestFleetNeverBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newCounter(t, &office{}, "a")
		unhold := a.st.hold("Elect")
		defer unhold()
		began := time.Now()
		a.shows(-1)
		a.shows(-1)
		if took := time.Since(began); took != 0 {
			t.Errorf("two looks took %s", took)
		}
		a.asked("Elect", 1)
	})
}
