package postgres

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// Tracing adds nothing to a statement, or a connection, for calls that are not recorded. A recorded call has its span.
func TestAStatementThatIsNotRecordedAllocatesNothing(t *testing.T) {
	provider := sdktrace.NewTracerProvider()
	s := &Space{tracer: newTracer(provider)}
	connects := s.tracer.(pgx.ConnectTracer)
	config := &pgx.ConnConfig{}
	statement := func(ctx context.Context) context.Context {
		begun := s.tracer.TraceQueryStart(ctx, nil, pgx.TraceQueryStartData{SQL: "SELECT 1"})
		s.tracer.TraceQueryEnd(begun, nil, pgx.TraceQueryEndData{})
		_, end := s.span(ctx, nil, statement{sql: "SELECT 1"})
		end(pgx.TraceQueryEndData{}.CommandTag, nil)
		connects.TraceConnectEnd(connects.TraceConnectStart(ctx, pgx.TraceConnectStartData{ConnConfig: config}), pgx.TraceConnectEndData{})
		return begun
	}
	app := trace.ContextWithRemoteSpanContext(context.Background(), trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{1}}))
	for name, ctx := range map[string]context.Context{"no trace": context.Background(), "not sampled": app} {
		if n := testing.AllocsPerRun(100, func() { statement(ctx) }); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
	call, span := provider.Tracer("x").Start(context.Background(), "lock.acquire")
	defer span.End()
	if trace.SpanFromContext(s.tracer.TraceQueryStart(call, nil, pgx.TraceQueryStartData{SQL: "SELECT 1"})) == span {
		t.Error("a statement of a recorded call has no span")
	}
}
