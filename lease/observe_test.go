package lease

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/internal/tracing"
	"github.com/locksidecar/locksidecar/lease/internal/holdings"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

func (r *rig) counted(what string, of map[string]int, want ...string) {
	r.t.Helper()
	if got := r.counts.take(of); !slices.Equal(got, want) {
		r.t.Errorf("%s: %q, not %q", what, got, want)
	}
}

func (r *rig) acquired(want ...string) {
	r.t.Helper()
	r.counted("acquired", r.counts.acquired, want...)
}

// Each acquire has one result, named as in the contract.
func TestResultsOfAcquires(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		limits := with(func(c *types.Config) { c.MaxLocksPerSession, c.MaxWaiters = 2, 1 })
		r := newRig(t, opt, limits)
		s, o := r.eitherSession(), r.eitherSession()
		ctx := context.Background()
		k := r.lock(s, "k")
		r.acquired("k granted")
		_, _ = r.try(o, "k")
		r.acquired("k held")
		_, _ = r.m.Acquire(ctx, o, types.Request{Key: "k", Wait: time.Second})
		r.acquired("k wait_timeout")
		if r.counts.waited != time.Second {
			t.Errorf("waited %s", r.counts.waited)
		}

		leaving, leave := context.WithCancel(ctx)
		gone := r.ask(leaving, o, types.Request{Key: "k", Wait: time.Minute})
		synctest.Wait()
		_, _ = r.m.Acquire(ctx, o, types.Request{Key: "k", Wait: time.Second})
		r.acquired("k limit") // the limit of waiting calls
		leave()
		<-gone.done
		r.acquired("k caller_left")
		time.Sleep(time.Second)

		skips := r.ask(ctx, o, types.Request{Key: "k", Wait: time.Minute, Skip: true})
		synctest.Wait()
		_, err := r.m.Release(ctx, s, types.ReleaseRequest{Key: "k", Token: k.Token, Outcome: store.Success})
		r.must(err)
		<-skips.done
		r.acquired("k skipped")

		own := types.Request{Key: "k", Owner: "me", Reentrant: true, NoCache: true}
		for range 2 {
			_, err = r.m.Acquire(ctx, s, own)
			r.must(err)
		}
		r.acquired("k granted", "k reentered")
		r.lock(s, "l")
		_, _ = r.try(s, "m")
		r.acquired("l granted", "m limit")

		waits := r.wait(o, "k", time.Minute)
		o.End(types.EndDeleted)
		<-waits.done
		_, _ = r.try(o, "x")
		r.acquired("k session_ended", "x session_ended")

		r.st.set("Acquire", fault{refuse: true, times: 1})
		_, _ = r.m.Acquire(ctx, nil, types.Request{Key: "x", Bind: types.BindTTL, TTL: time.Minute})
		r.acquired("x store_unavailable")
		r.m.Drain()
		_, _ = r.try(s, "x")
		r.acquired("x draining")
	})
}

// A group counts once for each of its keys, when its outcome is known.
func TestResultsOfGroups(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		s, o := r.eitherSession(), r.eitherSession()
		g := r.lock(o, "y")
		r.acquired("y granted")
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, err := r.m.AcquireAll(context.Background(), s, []string{"y", "x"}, types.Request{Wait: time.Minute})
			r.must(err)
		}()
		time.Sleep(time.Second)
		r.acquired()
		r.release(o, g)
		<-done
		r.acquired("x granted", "y granted")
		_, _ = r.m.AcquireAll(context.Background(), o, []string{"a", "y"}, types.Request{})
		r.acquired("a held", "y held")
		_, _ = r.m.AcquireAll(context.Background(), s, []string{"a", "y"}, types.Request{Wait: time.Minute})
		r.acquired("a invalid_request", "y invalid_request")
	})
}

func TestResultsOfReleases(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		s, o := r.eitherSession(), r.eitherSession()
		released := func(s *holdings.Session, g types.Grant, reentry int, want string) {
			t.Helper()
			_, _ = r.m.Release(context.Background(), s, types.ReleaseRequest{Key: g.Key, Token: g.Token, Reentry: reentry})
			r.counted("released", r.counts.released, g.Key+" "+want)
		}
		own := types.Request{Key: "k", Owner: "me", Reentrant: true}
		g, err := r.m.Acquire(context.Background(), s, own)
		r.must(err)
		_, err = r.m.Acquire(context.Background(), s, own)
		r.must(err)
		released(o, g, 0, "not_holder")
		released(s, g, 1, "invalid_request")
		released(s, g, 3, "not_holder")
		released(s, g, 0, "reentered")
		released(s, g, 0, "released")
		released(s, g, 0, "not_holder")
		lost := r.lock(s, "k")
		s.Find("k", lost.Token).Lose(types.LostExpired)
		released(s, lost, 0, "lock_lost")
		r.st.setAll(fault{refuse: true})
		released(nil, types.Grant{Key: "x", Token: 1}, 0, "store_unavailable")
		r.st.lift(everyOp...)
	})
}

// Each hold ends once, with its reason and duration.
func TestEndsOfHolds(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		s, deleted, dropped := r.eitherSession(), r.eitherSession(), r.eitherSession()
		g := r.lock(s, "mine")
		r.lock(deleted, "deleted")
		r.lock(dropped, "drop")
		_, err := r.m.Acquire(context.Background(), s, types.Request{Key: "max", MaxHold: time.Second})
		r.must(err)
		r.lock(s, "force")
		time.Sleep(time.Second)
		r.release(s, g)
		deleted.End(types.EndDeleted)
		dropped.End(types.EndDropped)
		r.must(r.m.Break(context.Background(), r.stored("force"), 0))
		r.lock(s, "lost")
		time.Sleep(time.Second)
		r.m.leases.Lose(r.m.leases.Get(r.m.cfg.TTL), types.LostStore)
		r.lock(s, "stop")
		time.Sleep(time.Second)
		r.m.Stop()
		want := "deleted session_ended, drop disconnected, force forced, lost store_lost, max max_hold, mine released, stop shutdown"
		var got []string
		synctest.Wait()
		for _, e := range r.counts.ended {
			got = append(got, e.key+" "+e.reason)
			if d := e.held.Round(100 * time.Millisecond); d != time.Second {
				t.Errorf("%s: held for %s", e.key, d)
			}
		}
		slices.Sort(got)
		if strings.Join(got, ", ") != want {
			t.Errorf("ended: %q", got)
		}
		r.counted("sessions", r.counts.sessions, "deleted", "dropped", "shutdown")
	})
}

// Answers without a statement are counted.
func TestCachedAnswers(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		s, o := r.eitherSession(), r.eitherSession()
		ctx := context.Background()
		cached := func(want ...string) {
			t.Helper()
			r.counted("cached", r.counts.cached, want...)
		}
		g, err := r.m.Acquire(ctx, s, types.Request{Key: "k", Owner: "me", Reentrant: true})
		r.must(err)
		other := r.another(opt)
		other.lock(other.eitherSession(), "far")
		cached()
		_, _ = r.m.Acquire(ctx, o, types.Request{Key: "k"})
		cached("held_here")
		_, _ = r.m.Acquire(ctx, o, types.Request{Key: "far"})
		cached()
		_, _ = r.m.Acquire(ctx, o, types.Request{Key: "far"})
		cached("held_cache")
		_, _ = r.m.Acquire(ctx, s, types.Request{Key: "k", Owner: "me", Reentrant: true})
		cached("entry")
		_, _ = r.m.Get(ctx, s, "k", false)
		_, _ = r.m.Get(ctx, s, "k", true)
		cached("read")
		_, _ = r.m.Amend(ctx, s, types.AmendRequest{Key: "k", Token: g.Token})
		_, _ = r.m.Amend(ctx, s, types.AmendRequest{Key: "k", Token: g.Token, SetData: true})
		cached("check")
		r.release(s, g)
		r.release(s, g)
		_, _ = r.m.Release(ctx, s, types.ReleaseRequest{Key: "k", Token: g.Token})
		cached("ended")
	})
}

// A hand-off counts also if its news is lost. A grant of a free key is not a hand-off.
func TestHandOffsAreTimed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		other := r.another()
		told := &handOffs{by: map[string]string{}}
		r.st.handOffs, other.st.handOffs = told, told
		s, o := r.eitherSession(), other.eitherSession()
		for i, news := range []bool{true, false} {
			other.st.dropNews = !news
			g := r.lock(s, "k")
			a := other.wait(o, "k", time.Minute)
			r.release(s, g)
			other.release(o, a.granted(t))
			if got := other.counts.delays(); len(got) != i+1 || got[i] != grantedAgo {
				t.Errorf("hand-offs: %v", got)
			}
		}
		if got := r.counts.delays(); len(got) != 0 {
			t.Errorf("hand-offs: %v", got)
		}
	})
}

func TestRenewalsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		s := r.eitherSession()
		r.lock(s, "k")
		time.Sleep(6 * time.Second)
		if got := r.counts.renewals(); got != [3]int{1, 0, 0} {
			t.Errorf("renewals: %v", got)
		}
		r.st.set("Renew", fault{refuse: true, times: 1})
		time.Sleep(5 * time.Second)
		if got := r.counts.renewals(); got != [3]int{2, 0, 1} {
			t.Errorf("renewals: %v", got)
		}
		r.must(r.st.Store.Revoke(context.Background(), []store.LeaseID{r.m.leases.Get(r.m.cfg.TTL).ID()}))
		time.Sleep(6 * time.Second)
		if got := r.counts.renewals(); got != [3]int{2, 1, 1} || len(r.losses()) != 1 {
			t.Errorf("renewals: %v, losses %v", got, r.losses())
		}
	})
}

// Gauges show the current state.
func TestState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		if st := r.counts.state(); !st.Ready || st.Sessions+st.Leases != 0 || st.OldestHold+st.LeaseExpiry != 0 {
			t.Errorf("without a lock: %+v", st)
		}
		s := r.eitherSession()
		old := r.lock(s, "old")
		time.Sleep(time.Second)
		_, err := r.m.Acquire(context.Background(), s, types.Request{Key: "short", TTL: 2 * time.Second})
		r.must(err)
		time.Sleep(500 * time.Millisecond)
		st := r.counts.state()
		if st.Sessions != 1 || st.Leases != 2 || st.Held[""].Exclusive != 2 || st.OldestHold != 1500*time.Millisecond {
			t.Errorf("state: %+v", st)
		}
		if st.LeaseExpiry <= 0 || st.LeaseExpiry > 2*time.Second {
			t.Errorf("a lease of 2 s lasts for %s", st.LeaseExpiry)
		}
		if want := st.LeaseExpiry.Seconds() / 2; st.LeaseLeft != want { // the other lease has more left
			t.Errorf("the lease has %v of its TTL left, want %v", st.LeaseLeft, want)
		}
		r.release(s, old)
		if st := r.counts.state(); st.OldestHold != 500*time.Millisecond {
			t.Errorf("state: %+v", st)
		}
		r.st.away(true)
		if r.counts.state().Ready {
			t.Error("ready without a store")
		}
		r.m.Drain()
		if st := r.counts.state(); !st.Draining || st.Ready {
			t.Errorf("state: %+v", st)
		}
	})
}

// lines collects the log in the format of package slog.
type lines struct{ bytes.Buffer }

func (l *lines) opt(level slog.Level) option {
	return with(func(c *types.Config) { c.Logger = slog.New(slog.NewJSONHandler(l, &slog.HandlerOptions{Level: level})) })
}

// take returns the new log lines: level, message, code or reason, and trace.
func (l *lines) take(t *testing.T) (out []string) {
	t.Helper()
	for dec := json.NewDecoder(&l.Buffer); ; {
		var line map[string]any
		if err := dec.Decode(&line); err == io.EOF {
			return out
		} else if err != nil {
			t.Fatal(err)
		}
		text := fmt.Sprint(line["level"], " ", line["msg"])
		for _, key := range []string{"operation", "code", "reason", "trace_id"} {
			if v, ok := line[key]; ok {
				text += fmt.Sprint(" ", v)
			}
		}
		out = append(out, text)
	}
}

// Each refusal has one line with the trace of its call. Ordinary refusals are at level debug.
func TestRefusalsAreLogged(t *testing.T) {
	const id = "4bf92f3577b34da6a3ce929d0e0e4736"
	const parent = "00-" + id + "-00f067aa0ba902b7-01"
	synctest.Test(t, func(t *testing.T) {
		var log lines
		r := newRig(t, log.opt(slog.LevelDebug), with(func(c *types.Config) { c.MaxLocksPerSession = 1 }))
		s, o := r.eitherSession(), r.eitherSession()
		logged := func(want ...string) {
			t.Helper()
			if got := log.take(t); !slices.Equal(got, want) {
				t.Errorf("logged %q, not %q", got, want)
			}
		}
		ctx := context.Background()
		g, err := r.m.Acquire(ctx, s, types.Request{Key: "k", Traceparent: parent})
		r.must(err)
		logged()
		_, _ = r.m.Acquire(ctx, o, types.Request{Key: "k", Traceparent: parent})
		logged("DEBUG call refused acquire held " + id)
		_, _ = r.m.Acquire(ctx, s, types.Request{Key: "l", Traceparent: parent})
		logged("WARN call refused acquire limit " + id)
		_, _ = r.m.Acquire(ctx, s, types.Request{Key: "l"})
		logged("WARN call refused acquire limit")
		_, _ = r.m.Release(ctx, o, types.ReleaseRequest{Key: "k", Token: g.Token, Traceparent: parent})
		logged("WARN claim refused release other_session " + id)
		_, _ = r.m.Amend(ctx, o, types.AmendRequest{Key: "k", Token: g.Token, Traceparent: parent})
		logged("WARN claim refused amend other_session " + id)
		_, _ = r.m.Amend(ctx, s, types.AmendRequest{Key: "k", Token: g.Token, TTL: time.Second, Traceparent: parent})
		logged("WARN call refused amend invalid_request " + id)
		_, _ = r.m.Release(ctx, s, types.ReleaseRequest{Key: "k", Token: g.Token, Reentry: 2, Traceparent: parent})
		logged("WARN claim refused release released " + id)

		r.must(r.m.AskToStop(ctx, "k", 0, nil))
		synctest.Wait()
		told := log.take(t)
		slices.Sort(told)
		if want := []string{"INFO holder asked to stop " + id, "INFO the holder of a lock is asked to stop"}; !slices.Equal(told, want) {
			t.Errorf("logged %q", told)
		}
		r.must(r.m.Break(sampledCall(), r.stored("k"), 0))
		synctest.Wait()
		logged("WARN lock broken on request " + id)
		_, _ = r.m.Release(ctx, s, types.ReleaseRequest{Key: "k", Token: g.Token, Traceparent: parent})
		logged("WARN claim refused release forced " + id)
	})
}

// A request to stop is logged with the trace of its context.
func TestForceNamesItsTrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log lines
		sp := newSpans(t)
		r := sp.on(log.opt(slog.LevelInfo))
		r.lock(r.eitherSession(), "k")
		c := sp.call(context.Background(), "lock.stop", "admin")
		r.must(r.m.AskToStop(c.ctx, "k", 0, nil))
		synctest.Wait() // the holder's notification is logged, too
		want := "INFO the holder of a lock is asked to stop " + tracing.TraceID(c.parent)
		if got := log.take(t); !slices.Contains(got, want) {
			t.Errorf("logged %q", got)
		}
	})
}

// An acquire and release without tracing allocate only the necessary.
func TestAPairAllocatesLittle(t *testing.T) {
	const most = 16
	m := benchManager(t)
	s := benchSession(t, m)
	ctx := context.Background()
	got := testing.AllocsPerRun(200, func() {
		g, err := m.Acquire(ctx, s, types.Request{Key: "k"})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := m.Release(ctx, s, types.ReleaseRequest{Key: "k", Token: g.Token}); err != nil {
			t.Fatal(err)
		}
	})
	if got > most {
		t.Errorf("an acquire and release allocate %v times, want %d", got, most)
	}
	if h := m.holdings.Get("k"); h != nil {
		t.Errorf("held: %+v", h)
	}
}

// A new holder learns which call freed the lock, with and without tracing. This is the release, or
// the acquire of the lock if it ended without a release.
func TestHandOffsNameTheirCall(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		told := &handOffs{by: map[string]string{}}
		r.st.handOffs = told
		names := func(want string) {
			t.Helper()
			synctest.Wait()
			r.noKept()
			told.mu.Lock()
			defer told.mu.Unlock()
			if told.by["k"] != want {
				t.Errorf("handed over by %q, not %q", told.by["k"], want)
			}
			told.by["k"] = "nobody"
		}
		ctx := context.Background()
		var s *holdings.Session
		lock := func(maxHold time.Duration) types.Grant {
			s = r.eitherSession()
			g, err := r.m.Acquire(ctx, s, types.Request{Key: "k", MaxHold: maxHold, Traceparent: "acquire"})
			r.must(err)
			return g
		}
		_, err := r.m.Release(ctx, s, types.ReleaseRequest{Key: "k", Token: lock(0).Token, Traceparent: "release"})
		r.must(err)
		names("release")
		_, err = r.m.Release(ctx, s, types.ReleaseRequest{Key: "k", Token: lock(0).Token})
		r.must(err)
		names("")
		lock(0)
		s.End(types.EndDropped)
		names("acquire")
		lock(time.Second)
		time.Sleep(2 * time.Second)
		names("acquire")
		g := lock(0)
		r.m.HandBack(s, g)
		names("acquire")
		g, err = r.m.Acquire(ctx, nil, types.Request{Key: "k", Bind: types.BindTTL, TTL: time.Minute, Traceparent: "acquire"})
		r.must(err)
		_, err = r.m.Release(ctx, nil, types.ReleaseRequest{Key: "k", Token: g.Token, Traceparent: "release"})
		r.must(err)
		names("release")
	})
}
