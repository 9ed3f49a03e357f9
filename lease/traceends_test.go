package lease

import (
	"context"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/locksidecar/locksidecar/internal/tracing"
	"github.com/locksidecar/locksidecar/lease/internal/types"
)

// A call may leave while its attempt is about to be queued. Every span that begins must end.
func TestNoWaitBeginsAfterItsCall(t *testing.T) {
	open := &openSpans{}
	r := newRig(t, open.opt())
	far, o := r.another(open.opt()), r.eitherSession()
	s := far.eitherSession()
	g := far.lock(s, "k") // the sidecar does not know the holder, so the first statement enqueues
	ctx, leave := context.WithCancel(sampledCall())
	answer := r.st.holdAnswer("Acquire")
	a := r.ask(ctx, o, types.Request{Key: "k", Wait: time.Minute, NoCache: true})
	time.Sleep(20 * time.Millisecond)
	r.counts.waiting.Lock() // an attempt counts as a wait before its span begins
	answer()
	time.Sleep(20 * time.Millisecond)
	leave()
	<-a.done
	r.counts.waiting.Unlock()
	far.release(s, g)
	r.m.Stop()
	far.m.Stop()
	open.none(t)
}

// A lock that ends with the sidecar's stop does not count as an error.
func TestShutdownIsNoErrorOfTheSpan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sp := newSpans(t)
		r := sp.on()
		sp.acquire(r, "a", r.eitherSession(), types.Request{Key: "k"})
		r.m.Stop()
		held := sp.named("lock.held")
		if len(held) != 1 || held[0].Status.Code != codes.Unset || !slices.Contains(held[0].Attributes, tracing.EndReason.String("shutdown")) {
			t.Errorf("got %+v", held)
		}
	})
}

// A held lock does not keep the span of its call in memory.
func TestAHeldLockDoesNotKeepItsCallsSpan(t *testing.T) {
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(&openSpans{}))
	r := newRig(t, with(func(c *types.Config) { c.Tracer = tracing.New(provider) }))
	s := r.eitherSession()
	gone := make(chan struct{})
	func() {
		ctx, span := provider.Tracer("").Start(context.Background(), "lock.acquire")
		runtime.SetFinalizer(span, func(trace.Span) { close(gone) })
		_, err := r.m.Acquire(ctx, s, types.Request{Key: "k"})
		r.must(err)
		span.End()
	}()
	for range 20 {
		runtime.GC()
		select {
		case <-gone:
			return
		case <-time.After(50 * time.Millisecond):
		}
	}
	t.Error("the span is kept")
}

// A waiting group extends its parts repeatedly. These extensions have no spans.
func TestSpansOfALongWaitOfAGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sp := newSpans(t)
		r := sp.on()
		s := r.eitherSession()
		r.lock(s, "b")
		ctx, leave := context.WithCancel(context.Background())
		c := sp.call(ctx, "lock.acquire", "x")
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = r.m.AcquireAll(c.ctx, nil, []string{"a", "b"}, types.Request{Bind: types.BindTTL, TTL: 3 * time.Second, Wait: types.WaitForever, Traceparent: c.parent})
			c.span.End()
		}()
		time.Sleep(time.Hour)
		leave()
		<-done
		time.Sleep(time.Second)
		if n := len(sp.exporter.GetSpans()); n > 30 {
			t.Errorf("%d spans", n)
		}
	})
}
