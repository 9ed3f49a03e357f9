package observe

import (
	"context"
	"log/slog"
	"slices"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/locksidecar/locksidecar/internal/tracing"
	"github.com/locksidecar/locksidecar/store"
)

// recorded makes an observer, the context of a call that is recorded, and the list of the
// spans that have ended.
func recorded(t *testing.T) (*Observer, context.Context, *tracetest.InMemoryExporter) {
	t.Helper()
	exporter := tracetest.NewInMemoryExporter()
	tracer := tracing.New(sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter)))
	ctx, span := tracer.Start(t.Context(), "lock.acquire", trace.SpanKindServer)
	t.Cleanup(func() { span.End() })
	return New(slog.New(slog.DiscardHandler), nil, tracer, true), ctx, exporter
}

// Only a loss is an error of a lock's span. A release, the end of its session and the stop of
// the sidecar are none.
func TestOnlyALossIsAnErrorOfTheSpan(t *testing.T) {
	for reason, want := range map[string]codes.Code{
		Released: codes.Unset, SessionEnded: codes.Unset, Shutdown: codes.Unset,
		"expired": codes.Error, "store_lost": codes.Error, "broken": codes.Error, "max_hold": codes.Error,
	} {
		o, ctx, exporter := recorded(t)
		h := o.Trace(ctx, "k", false).Hold(false)
		h.Begin(1, "s")
		o.HoldEnded(h, "k", reason, time.Second)
		spans := exporter.GetSpans()
		if len(spans) != 1 || spans[0].Status.Code != want {
			t.Errorf("%s: %d spans, %s", reason, len(spans), want)
		}
	}
}

// An attempt of a call that has left may still be queued: it begins no second wait, which
// nobody would end.
func TestNoWaitBeginsWhenTheCallHasLeft(t *testing.T) {
	o, ctx, exporter := recorded(t)
	c := o.Trace(ctx, "k", false)
	c.Enqueue(&store.Lock{})
	c.Leave()
	c.EndWait(CallerLeft)
	c.Enqueue(&store.Lock{})
	c.EndWait(CallerLeft)
	if spans := exporter.GetSpans(); len(spans) != 1 {
		t.Errorf("%d spans, want one wait", len(spans))
	}
}

// A kept key is granted without a span of the store below the call's, so the call's own says why.
func TestTheGrantOfAKeptKeyIsInTheSpan(t *testing.T) {
	exporter := tracetest.NewInMemoryExporter()
	tracer := tracing.New(sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter)))
	ctx, span := tracer.Start(t.Context(), "lock.acquire", trace.SpanKindServer)
	New(slog.New(slog.DiscardHandler), nil, tracer, true).Took(ctx)
	span.End()
	if got := exporter.GetSpans()[0].Attributes; !slices.Contains(got, attribute.Bool("lock.kept", true)) {
		t.Errorf("%v", got)
	}
}
