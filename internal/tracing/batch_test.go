package tracing_test

import (
	"context"
	"slices"
	"testing"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/locksidecar/locksidecar/internal/tracing"
)

// A batch of calls that are not recorded costs a look at each of them.
func TestABatchOfUnrecordedCallsAllocatesNothing(t *testing.T) {
	provider := sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.NeverSample()))
	tracer := tracing.New(provider)
	call, _ := tracer.Start(context.Background(), "lock.acquire", trace.SpanKindServer)
	calls := slices.Repeat([]context.Context{call}, 1000)
	if n := testing.AllocsPerRun(100, func() {
		_, end := tracer.Batch(context.Background(), "acquire", calls, len(calls))
		end(nil)
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
