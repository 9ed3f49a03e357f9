package metrics

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"go.opentelemetry.io/otel/trace"

	"github.com/locksidecar/locksidecar/store"
)

var update = flag.Bool("update", false, "write testdata/exposition.txt")

// exposed returns what Prometheus would scrape, by name.
func exposed(t *testing.T, s *Set) map[string]*dto.MetricFamily {
	t.Helper()
	families, err := s.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	byName := map[string]*dto.MetricFamily{}
	for _, f := range families {
		byName[f.GetName()] = f
	}
	return byName
}

// lines shows each series without its buckets: what it is called, and its value.
func lines(families map[string]*dto.MetricFamily) []string {
	var all []string
	for name, f := range families {
		for _, m := range f.GetMetric() {
			var of []string
			for _, l := range m.GetLabel() {
				of = append(of, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			series := fmt.Sprintf("%s{%s} %s", name, strings.Join(of, ","), strings.ToLower(f.GetType().String()))
			if h := m.GetHistogram(); h != nil {
				all = append(all, fmt.Sprintf("%s %d in %g", series, h.GetSampleCount(), h.GetSampleSum()))
			} else {
				all = append(all, fmt.Sprintf("%s %g", series, m.GetCounter().GetValue()+m.GetGauge().GetValue()))
			}
		}
	}
	slices.Sort(all)
	return all
}

// everything records each thing once, or a few times.
func everything() *Set {
	s, ctx := New("1.2.3", true), context.Background()
	l := s.Locks
	l.Acquired(ctx, "deploy:prod", false, Granted, 3*time.Second)
	l.Acquired(ctx, "deploy:prod", false, Reentered, 0)
	l.Acquired(ctx, "deploy:test", false, "held", time.Millisecond)
	l.Acquired(ctx, "deploy:test", true, "limit_mismatch", time.Millisecond)
	l.Acquired(ctx, "report", false, Granted, 20*time.Millisecond)
	l.Acquired(ctx, ":report", false, Skipped, 20*time.Millisecond)
	l.Waits("deploy:prod", 2)
	l.Ended(ctx, "report", "released", time.Minute)
	l.Ended(ctx, "deploy:prod", "session_ended", time.Minute)
	l.Ended(ctx, "deploy:prod", "store_lost", 1500*time.Millisecond)
	l.Releases("report", Released)
	l.Releases("report", "not_holder")
	l.HandedOff(ctx, 2*time.Millisecond)
	l.Cached("held_cache")
	l.KeptGranted()
	l.Recalled(true)
	l.Recalled(false)
	l.Recalled(false)
	l.Renewed(4*time.Millisecond, 3, 2, 1)
	l.SessionEnded("dropped")
	l.Observe(func() State {
		return State{Sessions: 4, Held: map[string]HeldLocks{"deploy": {Exclusive: 1, Shared: 3}}, Kept: 7, Leases: 2, LeaseExpiry: 9 * time.Second, LeaseLeft: 0.6, OldestHold: time.Hour, Ready: true}
	})
	l.ObserveFleet(func() (store.Stats, bool) {
		return store.Stats{
			Types: []store.Stat{{Namespace: "default", Name: "deploy", Held: 5, Expired: 1, Waiting: 2, Average: time.Second, Longest: time.Minute}},
			Pods:  []store.Stat{{Namespace: "default", Name: "web-1", Held: 5, Expired: 1, Waiting: 2, Average: time.Second, Longest: time.Minute}},
		}, true
	})
	s.Store.Statement(ctx, "acquire_one", 300*time.Microsecond, nil)
	s.Store.Statement(ctx, "release_one", 300*time.Microsecond, errors.New("no"))
	s.Store.Batch("acquire", 17)
	s.Store.Observe(func() StoreState {
		return StoreState{Used: 1, Idle: 2, Max: 4, Waited: 7, WaitedFor: 250 * time.Millisecond, Listener: "listening", Quiet: 1500 * time.Millisecond}
	})
	s.Calls.Problem("held")
	s.Calls.Observe(func() int { return 6 })
	s.ObserveLog(func() int64 { return 8 })
	return s
}

// The names, types, labels and units are what dashboards and alerts are made of: a
// change here breaks those of others.
func TestExposition(t *testing.T) {
	const golden = "testdata/exposition.txt"
	got := strings.Join(lines(exposed(t, everything())), "\n") + "\n"
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("the exposition has changed (-update writes it):\n%s", diff(string(want), got))
	}
}

// diff lists the lines that only one of two texts has.
func diff(want, got string) string {
	var b strings.Builder
	for line := range strings.Lines(want) {
		if !strings.Contains(got, line) {
			b.WriteString("- " + line)
		}
	}
	for line := range strings.Lines(got) {
		if !strings.Contains(want, line) {
			b.WriteString("+ " + line)
		}
	}
	return b.String()
}

func TestEveryMetricIsExplainedAndPrefixed(t *testing.T) {
	for name, f := range exposed(t, everything()) {
		if f.GetHelp() == "" || !strings.HasPrefix(name, "locksidecar_") {
			t.Errorf("%s: %q", name, f.GetHelp())
		}
	}
}

func TestBuckets(t *testing.T) {
	s := New("", false)
	// On a bound, just over one, and over all of them.
	for _, d := range []time.Duration{time.Millisecond, time.Millisecond + time.Microsecond, 2 * time.Hour, -time.Second} {
		s.Locks.Ended(t.Context(), "a:b", Released, d)
	}
	h := exposed(t, s)["locksidecar_hold_duration_seconds"].GetMetric()[0].GetHistogram()
	var counts []uint64
	for _, b := range h.GetBucket() {
		counts = append(counts, b.GetCumulativeCount())
	}
	want := []uint64{2, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3}
	if !slices.Equal(counts, want) || h.GetSampleCount() != 4 || math.Abs(h.GetSampleSum()-7200.002001) > 1e-9 {
		t.Errorf("%v %d %v", counts, h.GetSampleCount(), h.GetSampleSum())
	}
	if first, last := h.GetBucket()[0].GetUpperBound(), h.GetBucket()[16].GetUpperBound(); first != 0.001 || last != 3600 {
		t.Error(first, last)
	}
}

// There are no more series than these, and no key is among them, whatever apps call their
// keys.
func TestTypesAreCapped(t *testing.T) {
	s, ctx := New("", false), t.Context()
	long := strings.Repeat("x", maxTypeBytes+1)
	holds := map[string]HeldLocks{}
	s.Locks.Observe(func() State { return State{Held: holds} })
	for i := range 3 * maxTypes {
		key := fmt.Sprintf("type%03d:secret", i)
		s.Locks.Acquired(ctx, key, false, Granted, time.Second)
		holds[fmt.Sprintf("type%03d", i)] = HeldLocks{Exclusive: 1}
		s.Locks.Waits(long+":secret", 1)
		s.Locks.Acquired(ctx, "secret", false, "held", time.Second)
	}
	families := exposed(t, s)
	held := families["locksidecar_locks_held"].GetMetric()
	if len(held) != maxTypes+2 {
		t.Errorf("%d types, not %d and the two that stand for others and none", len(held), maxTypes)
	}
	all := strings.Join(lines(families), "\n")
	for _, want := range []string{
		`locksidecar_locks_held{mode="exclusive",type="type000"} gauge 1`, `locksidecar_locks_held{mode="exclusive",type="type049"} gauge 1`,
		`locksidecar_locks_held{mode="exclusive",type="_others"} gauge 100`, `locksidecar_waiters{type="_others"} gauge 150`,
		`locksidecar_acquires_total{mode="exclusive",result="granted",type="_others"} counter 100`,
		`locksidecar_acquires_total{mode="exclusive",result="held",type="_none"} counter 150`,
	} {
		if !strings.Contains(all, want+"\n") {
			t.Errorf("missing: %s", want)
		}
	}
	for _, never := range []string{"secret", "type050", long} {
		if strings.Contains(all, never) {
			t.Errorf("%s must be in no series", never)
		}
	}
}

// Values that only a mistake can make many do not grow without end either.
func TestOtherLabelsAreCapped(t *testing.T) {
	s := New("", false)
	for i := range 10 * maxNames {
		s.Calls.Problem(fmt.Sprint("code", i))
		s.Store.Batch(fmt.Sprint("operation", i), 1)
	}
	families := exposed(t, s)
	for _, name := range []string{"locksidecar_problems_total", "locksidecar_batch_size"} {
		if n := len(families[name].GetMetric()); n != maxNames+1 {
			t.Errorf("%s has %d series", name, n)
		}
	}
}

// A gauge that is raised and lowered comes back to zero, also for types that are seen while
// others fill the table.
func TestGaugesBalance(t *testing.T) {
	s := New("", false)
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 200 {
				key := fmt.Sprintf("t%d:%d", (i*7+g)%(2*maxTypes), i)
				s.Locks.Waits(key, 1)
				s.Locks.Acquired(t.Context(), key, false, Granted, time.Second)
				s.Locks.Waits(key, -1)
			}
		})
	}
	wg.Wait()
	families, granted := exposed(t, s), 0.0
	waiters := families["locksidecar_waiters"].GetMetric()
	if len(waiters) != maxTypes+1 {
		t.Errorf("%d types", len(waiters))
	}
	for _, m := range waiters {
		if m.GetGauge().GetValue() != 0 {
			t.Error(m)
		}
	}
	for _, m := range families["locksidecar_acquires_total"].GetMetric() {
		granted += m.GetCounter().GetValue()
	}
	if granted != 1600 {
		t.Errorf("%v of 1600 are counted", granted)
	}
}

// An exemplar leads from a bucket to a trace, if there is one to be found.
func TestExemplars(t *testing.T) {
	sampled := trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: trace.TraceID{1, 2}, SpanID: trace.SpanID{3}, TraceFlags: trace.FlagsSampled,
	})
	in := func(sc trace.SpanContext) context.Context { return trace.ContextWithSpanContext(t.Context(), sc) }
	s := New("", true)
	s.Locks.Acquired(in(sampled), "a:b", false, Granted, 3*time.Second)
	s.Locks.Acquired(in(sampled.WithTraceFlags(0)), "a:b", false, Granted, 40*time.Second)
	buckets := exposed(t, s)["locksidecar_wait_duration_seconds"].GetMetric()[0].GetHistogram().GetBucket()
	var found []string
	for _, b := range buckets {
		if e := b.GetExemplar(); e != nil {
			found = append(found, fmt.Sprint(b.GetUpperBound(), e.GetValue(), e.GetLabel()))
		}
	}
	if len(found) != 1 || !strings.Contains(found[0], sampled.TraceID().String()) || !strings.HasPrefix(found[0], "5 3 ") {
		t.Errorf("one exemplar, of the sampled span, is expected: %v", found)
	}

	off := New("", false)
	off.Locks.Acquired(in(sampled), "a:b", false, Granted, time.Second)
	if off.Locks.of("a:b").waits.kept != nil {
		t.Error("without tracing nothing is kept")
	}
}

// A loss is seen by increase() only if its counter was there before.
func TestCountersAreThereBeforeTheyGrow(t *testing.T) {
	s := New("", false)
	s.Locks.Waits("a:b", 1)
	s.Store.Statement(t.Context(), "get", time.Second, nil)
	all := strings.Join(lines(exposed(t, s)), "\n")
	for _, want := range []string{
		`lost_total{reason="expired",type="a"} counter 0`, `renewals_total{result="failed"} counter 0`,
		`statement_errors_total{statement="get"} counter 0`, `sessions_ended_total{reason="dropped"} counter 0`,
		`cache_hits_total{kind="held_cache"} counter 0`, `acquires_total{mode="exclusive",result="granted",type="a"} counter 0`,
	} {
		if !strings.Contains(all, "locksidecar_"+want+"\n") {
			t.Errorf("missing: %s\n%s", want, all)
		}
	}
}

func TestTheFleetIsShownByItsLeaderOnly(t *testing.T) {
	s := everything()
	s.Locks.ObserveFleet(func() (store.Stats, bool) { return store.Stats{Types: []store.Stat{{Name: "a"}}}, false })
	s.Locks.Observe(func() State { return State{} })
	families := exposed(t, s)
	if f := families["locksidecar_fleet_locks"]; f != nil {
		t.Errorf("it is not the leader: %v", f)
	}
	if f := families["locksidecar_lease_expiry_seconds"]; f != nil {
		t.Errorf("without a lease none expires: %v", f)
	}
	if leads := families["locksidecar_fleet_leader"].GetMetric()[0].GetGauge().GetValue(); leads != 0 {
		t.Error(leads)
	}
}

func TestNilRecorders(t *testing.T) {
	s, ctx := &Set{}, t.Context()
	s.Locks.Acquired(ctx, "k", false, Granted, time.Second)
	s.Locks.Waits("k", 1)
	s.Locks.Ended(ctx, "k", "expired", time.Second)
	s.Locks.Releases("k", Released)
	s.Locks.HandedOff(ctx, time.Second)
	s.Locks.Cached("held_cache")
	s.Locks.Renewed(time.Second, 1, 1, 1)
	s.Locks.SessionEnded("dropped")
	s.Locks.Observe(nil)
	s.Locks.ObserveFleet(nil)
	s.Store.Statement(ctx, "get", time.Second, nil)
	s.Store.Batch("get", 1)
	s.Store.Observe(nil)
	s.Calls.Problem("held")
	s.Calls.Observe(nil)
}

// Recording is on the path of each call.
func TestRecordingTakesNoMemory(t *testing.T) {
	l, ctx := New("", true).Locks, t.Context()
	pair(ctx, l, "deploy:prod")
	l.Acquired(ctx, "deploy:prod", false, "held", time.Second)
	for name, f := range map[string]func(){
		"pair":   func() { pair(ctx, l, "deploy:prod") },
		"denied": func() { l.Acquired(ctx, "deploy:prod", false, "held", time.Second); l.Cached("held_cache") },
	} {
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

// A type may be part of a key that lies in a buffer of the connection.
func TestNamesAreCopied(t *testing.T) {
	buffer := []byte("abc:def")
	l := New("", false).Locks
	l.Waits(unsafeString(buffer), 1)
	copy(buffer, "xyz:xyz")
	if all := l.types.all(); all["abc"] == nil || all["xyz"] != nil {
		t.Errorf("%v", all)
	}
	if store.Others != "_others" {
		t.Error("the docs say _others")
	}
}

// Keys without a type have a label of their own, however many types there are.
func TestNoneHasAPlace(t *testing.T) {
	l := New("v", false).Locks
	for i := range 2 * maxTypes {
		l.Waits(fmt.Sprintf("type%d:", i), 1)
	}
	l.Waits("no type", 1)
	if l.of("no type") == l.of("another:") || l.of("no type") != l.types.all()[none] {
		t.Error("keys without a type have no series of their own")
	}
}
