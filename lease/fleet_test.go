package lease

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/internal/testing/logtest"
	"github.com/locksidecar/locksidecar/lease/internal/fleet"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/memory"
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

// counting is a double with elections.
type counting struct {
	*double
	name string
	*office
}

func (c counting) Elect(ctx context.Context, term time.Duration) (store.Election, error) {
	return do(ctx, c.double, "Elect", 0, func(context.Context) (store.Election, error) {
		c.office.mu.Lock()
		defer c.office.mu.Unlock()
		c.terms = append(c.terms, term)
		now := time.Now()
		switch mine := c.who == c.name; {
		case term == 0 && mine:
			c.until = now
		case term == 0:
		case mine || !now.Before(c.until):
			c.who, c.until = c.name, now.Add(term)
		default:
			return store.Election{Left: c.until.Sub(now)}, nil
		}
		return store.Election{Elected: term > 0, Left: term}, nil
	})
}

func (c counting) Stats(ctx context.Context) (store.Stats, error) {
	return do(ctx, c.double, "Stats", 0, func(context.Context) (store.Stats, error) {
		c.office.mu.Lock()
		defer c.office.mu.Unlock()
		return c.counts, nil
	})
}

// counter is a sidecar that takes part in the election.
type counter struct {
	t   *testing.T
	m   *Manager
	st  counting
	clk *fakeClock
	log *logtest.Log
}

func newCounter(t *testing.T, o *office, name string) *counter {
	t.Helper()
	st := counting{newDouble(memory.NewSpace().Open(store.Identity{Namespace: "test", Instance: name, Pod: name})), name, o}
	clk, log := &fakeClock{}, &logtest.Log{}
	m, err := New(types.Config{
		Clock: clk, Instance: name, Pod: name, TTL: 15 * time.Second, RenewInterval: 5 * time.Second,
		StoreTimeout: 5 * time.Second, PollInterval: time.Second, CacheSize: 1, BatchMax: 1,
		MaxSessions: 1, MaxLocksPerSession: 1, MaxWaiters: 1, Logger: slog.New(slog.NewTextHandler(log, nil)),
	}, st)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Stop)
	return &counter{t, m, st, clk, log}
}

// look scrapes once, and lets all goroutines settle before and after.
func (c *counter) look() (store.Stats, bool) {
	synctest.Wait()
	defer synctest.Wait()
	return c.m.Fleet()
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
		time.Sleep(fleet.Watched + 2*fleet.Interval)
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
		time.Sleep(fleet.Interval)
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
		a.m.Stop()
		if who := o.holder(); who != "" {
			t.Errorf("%q is still elected", who)
		}
		a.shows(-1)
		b.scrape(fleet.Term + fleet.Interval)
		b.shows(1)
		if last := o.terms[slices.Index(o.terms, 0):]; len(last) < 2 || last[1] != fleet.Term {
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
		a.m.Stop()
		if took := time.Since(began); took != a.m.cfg.StoreTimeout {
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
		a.st.set("Elect", fault{times: 1, forget: true})
		a.look()
		a.shows(-1)
		a.asked("Stats", 0)
		if who := o.holder(); who != "a" {
			t.Fatalf("%q is elected", who)
		}
		a.m.Stop()
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
		o.take("b", time.Now().Add(2*fleet.Term))
		a.scrape(fleet.Interval)
		a.shows(-1)
		o.take("", time.Time{})
		a.scrape(2*fleet.Term + fleet.Interval)
		a.shows(1)

		a.st.set("Elect", fault{refuse: true})
		a.scrape(fleet.Age*fleet.Interval - 90*time.Second)
		a.shows(1) // the term is not over, and the counts are not too old
		a.scrape(90 * time.Second)
		a.shows(-1)
		a.st.lift("Elect")
		a.scrape(fleet.Interval)
		a.shows(1)
	})
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
		o.take("b", time.Now().Add(fleet.Term))
		a.shows(-1)
		o.take("", time.Time{})
		a.scrape(fleet.Term)
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
		a.scrape(fleet.Term + fleet.Interval)
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
		a.scrape(fleet.Term - 15*time.Second)
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
		a.scrape(fleet.Age*fleet.Interval - 15*time.Second)
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
		a.scrape(fleet.Interval)
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
