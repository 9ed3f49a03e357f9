// Proves: rule traces

package lease

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/locksidecar/locksidecar/internal/tracing"
	"github.com/locksidecar/locksidecar/lease/internal/holdings"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

func TestSpansOfAFreeKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sp := newSpans(t)
		r := sp.on()
		s := r.eitherSession()
		g := sp.acquire(r, "a", s, types.Request{Key: "db:k"})
		time.Sleep(time.Second)
		sp.release(r, "a", s, types.ReleaseRequest{Key: g.Key, Token: g.Token})
		sp.want(`
			lock.acquire a
				lock.held db:k #1 released
				store.batch acquire 1 [call: lock.acquire a]
				store.batch open 1 [call: lock.acquire a]
			lock.release a [acquire: lock.acquire a]
				store.batch release 1 [call: lock.release a]
		`)
		held := sp.named("lock.held")[0]
		if d := held.EndTime.Sub(held.StartTime); d != time.Second {
			t.Errorf("held for %s", d)
		}
		if attributeOf(held.Attributes, "lock.type") != "db" || attributeOf(held.Attributes, "lock.session") != s.Name() {
			t.Errorf("held: %v", held.Attributes)
		}
	})
}

// Operations that take no time have no spans. The other spans are the same.
func TestSpansInline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sp := newSpans(t)
		r := sp.on(inline)
		s, o := r.eitherSession(), r.eitherSession()
		g := sp.acquire(r, "a", s, types.Request{Key: "k"})
		b := sp.ask(context.Background(), r, "b", o, types.Request{Key: "k", Wait: time.Minute})
		synctest.Wait()
		sp.release(r, "a", s, types.ReleaseRequest{Key: g.Key, Token: g.Token})
		b.granted(t)
		synctest.Wait()
		sp.want(`
			lock.acquire a
				lock.held k #1 released
			lock.acquire b
				lock.wait k 1 granted hand_off pod-a [holder: lock.acquire a] [release: lock.release a]
			lock.release a [acquire: lock.acquire a]
		`)
	})
}

// The waiter and the holder are apps of one sidecar, so the sidecar knows the holder and the
// release.
func TestSpansOfAWaitForANeighbour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sp := newSpans(t)
		r := sp.on()
		s, o := r.eitherSession(), r.eitherSession()
		g := sp.acquire(r, "a", s, types.Request{Key: "k"})
		b := sp.ask(context.Background(), r, "b", o, types.Request{Key: "k", Wait: time.Minute})
		time.Sleep(time.Second)
		sp.release(r, "a", s, types.ReleaseRequest{Key: g.Key, Token: g.Token})
		b.granted(t)
		o.End(types.EndDeleted)
		synctest.Wait()
		sp.want(`
			lock.acquire a
				lock.held k #1 released
				store.batch acquire 1 [call: lock.acquire a]
				store.batch open 1 [call: lock.acquire a]
			lock.acquire b
				lock.held k #3 session_ended
					store.batch release 1 [call: lock.held k]
				lock.wait k 1 granted hand_off pod-a [holder: lock.acquire a] [release: lock.release a]
					store.batch enqueue 1 [call: lock.wait k]
			lock.release a [acquire: lock.acquire a]
				store.batch release 1 [call: lock.release a]
		`)
		wait := sp.named("lock.wait")[0]
		if d := wait.EndTime.Sub(wait.StartTime); d != time.Second {
			t.Errorf("waited for %s", d)
		}
	})
}

// The holders are apps of other sidecars, and change during the wait. The wait has links to them
// and to the release that handed it the lock. This holds for each way in which the news can come.
func TestSpansAcrossSidecars(t *testing.T) {
	for name, news := range map[string]bool{"news": true, "no news": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { spansAcrossSidecars(t, news) })
		})
	}
}

func spansAcrossSidecars(t *testing.T, news bool) {
	sp := newSpans(t)
	a := sp.on()
	b := sp.beside(a)
	b.st.dropNews = !news
	s, o, u := a.eitherSession(), a.eitherSession(), b.eitherSession()
	first := sp.acquire(a, "first", s, types.Request{Key: "k"})
	second := sp.ask(context.Background(), a, "second", o, types.Request{Key: "k", Wait: time.Minute})
	time.Sleep(time.Second)
	third := sp.ask(context.Background(), b, "third", u, types.Request{Key: "k", Wait: time.Minute})
	time.Sleep(time.Second)
	sp.release(a, "first", s, types.ReleaseRequest{Key: "k", Token: first.Token})
	g := second.granted(t)
	time.Sleep(6 * time.Second) // the third call is checked with the renewals
	sp.release(a, "second", o, types.ReleaseRequest{Key: "k", Token: g.Token})
	g = third.granted(t)
	sp.release(b, "third", u, types.ReleaseRequest{Key: "k", Token: g.Token})
	sp.want(`
		lock.acquire first
			lock.held k #1 released
			store.batch acquire 1 [call: lock.acquire first]
			store.batch open 1 [call: lock.acquire first]
		lock.acquire second
			lock.held k #3 released
			lock.wait k 1 granted hand_off pod-a [holder: lock.acquire first] [release: lock.release first]
				store.batch enqueue 1 [call: lock.wait k]
		lock.acquire third
			lock.held k #4 released
			lock.wait k 2 granted hand_off pod-a [holder: lock.acquire first] [holder: lock.acquire second] [release: lock.release second]
				store.batch enqueue 1 [call: lock.wait k]
			store.batch acquire 1 [call: lock.acquire third]
			store.batch open 1 [call: lock.acquire third]
		lock.release first [acquire: lock.acquire first]
			store.batch release 1 [call: lock.release first]
		lock.release second [acquire: lock.acquire second]
			store.batch release 1 [call: lock.release second]
		lock.release third [acquire: lock.acquire third]
			store.batch release 1 [call: lock.release third]
	`)
}

// An app waits for a key that another sidecar keeps. Its wait has a link to the release that was put off, which is that of the last session.
func TestSpansOfARecall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sp := newSpans(t)
		a := sp.on(keeping)
		b := sp.beside(a, keeping)
		s := a.explicitSession()
		for _, app := range []string{"first", "second", "third"} { // the last one takes the key that is kept
			g := sp.acquire(a, app, s, types.Request{Key: "k"})
			time.Sleep(time.Millisecond)
			sp.release(a, app, s, types.ReleaseRequest{Key: "k", Token: g.Token})
		}
		if !a.m.acquirer.IsKept("k") {
			t.Fatal("the key is not kept")
		}
		sp.ask(context.Background(), b, "waits", b.explicitSession(), types.Request{Key: "k", Wait: time.Minute}).granted(t)
		var links []string
		for _, l := range sp.named("lock.wait")[0].Links {
			for _, to := range sp.exporter.GetSpans() {
				if to.SpanContext.SpanID() == l.SpanContext.SpanID() {
					links = append(links, attributeOf(l.Attributes, tracing.Link)+": "+nameOf(to))
				}
			}
		}
		if want := []string{"holder: lock.acquire second", "release: lock.release third"}; !slices.Equal(links, want) {
			t.Errorf("links to %q, want %q", links, want)
		}
	})
}

// A key that was freed before the call was queued was not handed over.
func TestSpansOfAWaitThatFoundTheKeyFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sp := newSpans(t)
		r := sp.on()
		s, o := r.eitherSession(), r.eitherSession()
		g := sp.acquire(r, "a", s, types.Request{Key: "k"})
		goOn := r.st.hold("Enqueue")
		b := sp.ask(context.Background(), r, "b", o, types.Request{Key: "k", Wait: time.Minute})
		synctest.Wait()
		sp.release(r, "a", s, types.ReleaseRequest{Key: "k", Token: g.Token})
		delete(sp.handOffs.by, "k")
		goOn()
		b.granted(t)
		wait := sp.named("lock.wait")[0]
		if by := attributeOf(wait.Attributes, "lock.granted_by"); by != "free" || len(wait.Links) != 1 {
			t.Errorf("granted by %q, %d links", by, len(wait.Links))
		}
	})
}

func TestSpansOfFailedWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sp := newSpans(t)
		a := sp.on()
		b := sp.beside(a)
		s, o, ends := a.eitherSession(), b.eitherSession(), b.eitherSession()
		g := sp.acquire(a, "a", s, types.Request{Key: "k"})
		late := sp.ask(context.Background(), b, "late", o, types.Request{Key: "k", Wait: time.Second})
		synctest.Wait()
		skips := sp.ask(context.Background(), b, "skips", o, types.Request{Key: "k", Wait: time.Minute, Skip: true})
		synctest.Wait()
		drops := sp.ask(context.Background(), b, "drops", ends, types.Request{Key: "k", Wait: time.Minute})
		time.Sleep(2 * time.Second)
		ends.End(types.EndDropped)
		<-drops.done
		synctest.Wait()
		sp.release(a, "a", s, types.ReleaseRequest{Key: "k", Token: g.Token, Outcome: store.Success})
		<-late.done
		<-skips.done
		synctest.Wait()
		sp.want(`
			lock.acquire a
				lock.held k #1 released
				store.batch acquire 1 [call: lock.acquire a]
				store.batch open 1 [call: lock.acquire a]
			lock.acquire drops
				lock.wait k 3 session_ended pod-a [holder: lock.acquire a]
					store.batch cancel 1 [call: lock.wait k]
					store.batch enqueue 1 [call: lock.wait k]
			lock.acquire late
				lock.wait k 1 wait_timeout pod-a [holder: lock.acquire a]
					store.batch cancel 1 [call: lock.wait k]
					store.batch enqueue 1 [call: lock.wait k]
				store.batch acquire 1 [call: lock.acquire late]
				store.batch open 1 [call: lock.acquire late]
			lock.acquire skips
				lock.wait k 2 skipped pod-a [holder: lock.acquire a]
					store.batch cancel 1 [call: lock.wait k]
					store.batch enqueue 1 [call: lock.wait k]
			lock.release a [acquire: lock.acquire a]
				store.batch release 1 [call: lock.release a]
		`)
	})
}

// The span of a lock that ended without a release has an error with the reason. If a dropped
// session released the lock, the next holder's span links to the acquire.
func TestSpansOfLosses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sp := newSpans(t)
		r := sp.on()
		drops, s, o := r.eitherSession(), r.eitherSession(), r.eitherSession()
		sp.acquire(r, "drops", drops, types.Request{Key: "drop"})
		sp.acquire(r, "late", s, types.Request{Key: "max", MaxHold: time.Second})
		sp.acquire(r, "broken", s, types.Request{Key: "force"})
		next := sp.ask(context.Background(), r, "next", o, types.Request{Key: "drop", Wait: time.Minute})
		synctest.Wait()
		drops.End(types.EndDropped)
		next.granted(t)
		r.must(r.m.Break(context.Background(), r.stored("force"), 0))
		time.Sleep(2 * time.Second)
		r.m.leases.Lose(r.m.leases.Get(r.m.cfg.TTL), types.LostStore)
		synctest.Wait()
		sp.want(`
			lock.acquire broken
				lock.held force #3 forced ERROR
					store.batch release 1 [call: lock.held force]
				store.batch acquire 1 [call: lock.acquire broken]
			lock.acquire drops
				lock.held drop #1 disconnected ERROR
					store.batch release 1 [call: lock.held drop]
				store.batch acquire 1 [call: lock.acquire drops]
				store.batch open 1 [call: lock.acquire drops]
			lock.acquire late
				lock.held max #2 max_hold ERROR
					store.batch release 1 [call: lock.held max]
				store.batch acquire 1 [call: lock.acquire late]
			lock.acquire next
				lock.held drop #4 store_lost ERROR
				lock.wait drop 1 granted hand_off pod-a [holder: lock.acquire drops] [release: lock.acquire drops]
					store.batch enqueue 1 [call: lock.wait drop]
		`)
	})
}

// A group has a wait span for each part. The spans of its locks begin when the group is complete.
func TestSpansOfAGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sp := newSpans(t)
		r := sp.on()
		s, o := r.eitherSession(), r.eitherSession()
		g := sp.acquire(r, "a", o, types.Request{Key: "y"})
		c := sp.call(context.Background(), "lock.acquire", "group")
		var grants []types.Grant
		done := make(chan struct{})
		go func() {
			defer close(done)
			defer c.span.End()
			var err error
			grants, err = r.m.AcquireAll(c.ctx, s, []string{"x", "y", "z"}, types.Request{Wait: time.Minute, Traceparent: c.parent})
			r.must(err)
		}()
		time.Sleep(time.Second)
		sp.release(r, "a", o, types.ReleaseRequest{Key: "y", Token: g.Token})
		<-done
		for _, g := range grants {
			sp.release(r, "group", s, types.ReleaseRequest{Key: g.Key, Token: g.Token})
		}
		sp.want(`
			lock.acquire a
				lock.held y #1 released
				store.batch acquire 1 [call: lock.acquire a]
				store.batch open 1 [call: lock.acquire a]
			lock.acquire group
				lock.held x #2 released
				lock.held y #3 released
				lock.held z #4 released
				lock.wait y 1 granted hand_off pod-a [holder: lock.acquire a] [release: lock.release a]
					store.batch enqueue 1 [call: lock.wait y]
				store.batch acquire 1 [call: lock.acquire group]
				store.batch acquire 1 [call: lock.acquire group]
			lock.release a [acquire: lock.acquire a]
				store.batch release 1 [call: lock.release a]
			lock.release group [acquire: lock.acquire group]
				store.batch release 1 [call: lock.release group]
			lock.release group [acquire: lock.acquire group]
				store.batch release 1 [call: lock.release group]
			lock.release group [acquire: lock.acquire group]
				store.batch release 1 [call: lock.release group]
		`)
		for _, held := range sp.named("lock.held")[1:] { // x was granted a second before the others
			if d := held.EndTime.Sub(held.StartTime); d != 0 {
				t.Errorf("held for %s before the group was complete", d)
			}
		}
	})
}

// A group that fails has no spans of locks, and its wait spans have the reason.
func TestSpansOfAFailedGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sp := newSpans(t)
		r := sp.on()
		s, o := r.eitherSession(), r.eitherSession()
		sp.acquire(r, "a", o, types.Request{Key: "y"})
		sp.exporter.Reset()
		c := sp.call(context.Background(), "lock.acquire", "group")
		_, err := r.m.AcquireAll(c.ctx, s, []string{"x", "y"}, types.Request{Wait: time.Second, Traceparent: c.parent})
		if _, late := errors.AsType[*types.TimeoutError](err); !late {
			t.Errorf("error %v", err)
		}
		c.span.End()
		synctest.Wait()
		waits := sp.named("lock.wait")
		if len(waits) != 1 || attributeOf(waits[0].Attributes, "lock.result") != "wait_timeout" {
			t.Errorf("waits: %+v", waits)
		}
		if held := sp.named("lock.held"); len(held) != 0 {
			t.Errorf("held: %+v", held)
		}
	})
}

// The span of a batch is a child of its first recorded call. It links to all recorded calls, and
// they link to it.
func TestSpansOfABatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sp := newSpans(t)
		r := sp.on()
		s := r.eitherSession()
		sp.acquire(r, "first", s, types.Request{Key: "0"})
		sp.exporter.Reset()
		goOn := r.st.hold("Acquire")
		var asked []*answer
		ask := func(ctx context.Context, key string) {
			asked = append(asked, sp.ask(ctx, r, key, s, types.Request{Key: key}))
			synctest.Wait()
		}
		ask(context.Background(), "1") // alone: the other calls come during its statement
		for _, key := range []string{"2", "3", "4"} {
			ask(context.Background(), key)
		}
		unseen := r.ask(context.Background(), s, types.Request{Key: "5"})
		synctest.Wait()
		goOn()
		for _, a := range append(asked, unseen) {
			a.granted(t)
		}
		sp.want(`
			lock.acquire 1
				store.batch acquire 1 [call: lock.acquire 1]
			lock.acquire 2
				store.batch acquire 4 [call: lock.acquire 2] [call: lock.acquire 3] [call: lock.acquire 4]
			lock.acquire 3 [batch: store.batch acquire]
			lock.acquire 4 [batch: store.batch acquire]
		`)
	})
}

// A reentry has no span of its own. A wait that ends with a reentry says so.
func TestSpansOfAReentry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sp := newSpans(t)
		r := sp.on()
		holder, s := r.eitherSession(), r.eitherSession()
		g := sp.acquire(r, "a", holder, types.Request{Key: "k"})
		req := types.Request{Key: "k", Owner: "o", Reentrant: true, Wait: time.Minute}
		one := sp.ask(context.Background(), r, "one", s, req)
		synctest.Wait()
		two := sp.ask(context.Background(), r, "two", s, req)
		synctest.Wait()
		sp.release(r, "a", holder, types.ReleaseRequest{Key: "k", Token: g.Token})
		g = one.granted(t)
		if again := two.granted(t); again.Reentry != 2 {
			t.Errorf("got %+v", again)
		}
		synctest.Wait()
		sp.exporter.Reset()
		sp.release(r, "one", s, types.ReleaseRequest{Key: "k", Token: g.Token})
		if held := sp.named("lock.held"); len(held) != 0 {
			t.Errorf("an entry is left, held: %+v", held)
		}
		sp.release(r, "two", s, types.ReleaseRequest{Key: "k", Token: g.Token})
		if held := sp.named("lock.held"); len(held) != 1 {
			t.Errorf("held: %+v", held)
		}
	})
}

// The span of a call that does not wait shows the holder, also if the cache answers.
func TestSpansOfHeldAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sp := newSpans(t)
		a := sp.on()
		b := sp.beside(a)
		s, o := a.eitherSession(), b.eitherSession()
		sp.acquire(a, "a", s, types.Request{Key: "k"})
		for _, try := range []struct {
			app string
			r   *rig
			s   *holdings.Session
		}{{"asks", b, o}, {"remembers", b, o}, {"neighbour", a, a.eitherSession()}} {
			<-sp.ask(context.Background(), try.r, try.app, try.s, types.Request{Key: "k"}).done
		}
		c := sp.call(context.Background(), "lock.acquire", "group")
		_, _ = b.m.AcquireAll(c.ctx, o, []string{"j", "k"}, types.Request{})
		c.span.End()
		s.End(types.EndDeleted)
		synctest.Wait()
		sp.want(`
			lock.acquire a
				lock.held k #1 session_ended
					store.batch release 1 [call: lock.held k]
				store.batch acquire 1 [call: lock.acquire a]
				store.batch open 1 [call: lock.acquire a]
			lock.acquire asks pod-a [holder: lock.acquire a]
				store.batch acquire 1 [call: lock.acquire asks]
				store.batch open 1 [call: lock.acquire asks]
			lock.acquire group pod-a [holder: lock.acquire a]
			lock.acquire neighbour pod-a [holder: lock.acquire a]
			lock.acquire remembers pod-a [holder: lock.acquire a]
		`)
	})
}

// A call that is not sampled has no spans, also not in shared batches.
func TestNoSpans(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sp := newSpans(t, sdktrace.WithSampler(sdktrace.NeverSample()))
		r := sp.on()
		s, o := r.eitherSession(), r.eitherSession()
		g := sp.acquire(r, "a", s, types.Request{Key: "k"})
		b := sp.ask(context.Background(), r, "b", o, types.Request{Key: "k", Wait: time.Minute})
		synctest.Wait()
		sp.release(r, "a", s, types.ReleaseRequest{Key: "k", Token: g.Token})
		b.granted(t)
		if all := sp.exporter.GetSpans(); len(all) != 0 {
			t.Errorf("spans: %+v", all)
		}
	})
}

// Work without a call has no span.
func TestNoSpansWithoutACall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sp := newSpans(t)
		r := sp.on()
		s, o := r.eitherSession(), r.eitherSession()
		g := r.lock(s, "k")
		b := r.wait(o, "k", types.WaitForever)
		r.release(s, g)
		r.release(o, b.granted(t))
		time.Sleep(time.Minute) // renewals, checks
		if all := sp.exporter.GetSpans(); len(all) != 0 {
			t.Errorf("spans: %+v", all)
		}
	})
}

// A bind:ttl lock has no session. The sidecar that releases it knows how long it was held.
func TestSpansOfABindTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sp := newSpans(t)
		a := sp.on()
		b := sp.beside(a)
		g := sp.acquire(a, "a", nil, types.Request{Key: "k", Bind: types.BindTTL, TTL: time.Hour})
		time.Sleep(time.Minute)
		sp.release(b, "b", nil, types.ReleaseRequest{Key: "k", Token: g.Token})
		sp.want(`
			lock.acquire a
				lock.held k #1 released
				store.batch acquire 1 [call: lock.acquire a]
			lock.release b [acquire: lock.acquire a]
				store.batch release 1 [call: lock.release b]
		`)
		held := sp.named("lock.held")[0]
		if d := held.EndTime.Sub(held.StartTime); d != time.Minute {
			t.Errorf("held for %s", d)
		}
	})
}
