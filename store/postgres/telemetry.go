package postgres

import (
	"context"
	"strings"
	"time"

	"github.com/exaring/otelpgx"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/trace"

	"github.com/locksidecar/locksidecar/internal/metrics"
	"github.com/locksidecar/locksidecar/internal/tracing"
)

type recorder interface {
	Statement(ctx context.Context, name string, took time.Duration, err error)
	Batch(operation string, items int)
	Observe(state func() metrics.StoreState)
}

var _ recorder = (*metrics.Store)(nil)

// begins returns the start time of a statement on a connection; zero without metrics.
func (s *Space) begins() time.Time {
	if s.metrics == nil {
		return time.Time{}
	}
	return time.Now()
}

func (s *Space) ends(ctx context.Context, name string, began time.Time, err error) {
	if s.metrics != nil {
		s.metrics.Statement(ctx, name, time.Since(began), err)
	}
}

// measured runs and records a statement outside an operation.
func (s *Space) measured(ctx context.Context, sql statement, do func(sql string) error) error {
	began := s.begins()
	err := do(sql.sql)
	s.ends(ctx, sql.name, began, err)
	return err
}

const (
	listenerOff        = "off"
	listenerConnecting = "connecting"
	listenerListening  = "listening"
)

func (e *listener) state() string {
	e.mu.Lock()
	on, heard := e.anyOn(), e.heard
	e.mu.Unlock()
	switch {
	case heard:
		return listenerListening
	case on && e.s.listens():
		return listenerConnecting
	default:
		return listenerOff
	}
}

// metricsState is the present state for metrics. The listener's connection is not in a pool.
func (s *Space) metricsState() metrics.StoreState {
	f := metrics.StoreState{Listener: s.listener.state(), Quiet: s.Quiet()}
	s.mu.Lock()
	r := s.started
	s.mu.Unlock()
	if r == nil {
		f.Listener = listenerOff
		return f
	}
	f.Waited, f.WaitedFor = s.places.Waited()
	for _, pool := range []*pgxpool.Pool{r.main, r.renewalPool} {
		stat := pool.Stat()
		f.Used += int(stat.AcquiredConns())
		f.Idle += int(stat.IdleConns())
		f.Max += int(stat.MaxConns())
		f.Waited += stat.EmptyAcquireCount()
		f.WaitedFor += stat.EmptyAcquireWaitTime()
	}
	return f
}

// newTracer makes spans of statements and new connections, if the context has a recorded span. A statement is one
// span, even if it is prepared first, or runs in an explicit transaction. Spans do not contain arguments.
func newTracer(spans trace.TracerProvider) pgx.QueryTracer {
	return onlyRecorded{otelpgx.NewTracer(
		otelpgx.WithTracerProvider(spans),
		otelpgx.WithMeterProvider(metricnoop.NewMeterProvider()), // metrics are made elsewhere
		otelpgx.WithSpanNameFunc(nameOf),
	)}
}

// onlyRecorded asks the tracer only if the context has a recorded span, because it takes the time of each
// statement, and makes a context for it, before it looks for a span.
type onlyRecorded struct{ t *otelpgx.Tracer }

// TraceQueryStart implements [pgx.QueryTracer].
func (o onlyRecorded) TraceQueryStart(ctx context.Context, conn *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	if !tracing.Recorded(ctx) {
		return ctx
	}
	return o.t.TraceQueryStart(ctx, conn, data)
}

// TraceQueryEnd implements [pgx.QueryTracer].
func (o onlyRecorded) TraceQueryEnd(ctx context.Context, conn *pgx.Conn, data pgx.TraceQueryEndData) {
	if tracing.Recorded(ctx) {
		o.t.TraceQueryEnd(ctx, conn, data)
	}
}

// TraceConnectStart implements [pgx.ConnectTracer].
func (o onlyRecorded) TraceConnectStart(ctx context.Context, data pgx.TraceConnectStartData) context.Context {
	if !tracing.Recorded(ctx) {
		return ctx
	}
	return o.t.TraceConnectStart(ctx, data)
}

// TraceConnectEnd implements [pgx.ConnectTracer].
func (o onlyRecorded) TraceConnectEnd(ctx context.Context, data pgx.TraceConnectEndData) {
	if tracing.Recorded(ctx) {
		o.t.TraceConnectEnd(ctx, data)
	}
}

// nameOf returns the name of a statement of this package, or the first word of another one.
func nameOf(sql string) string {
	text, ours := strings.CutPrefix(sql, mark)
	name, _, _ := strings.Cut(text, " ")
	if !ours && name == "" {
		return "sql"
	}
	return name
}

// span makes one span of an explicit transaction. Its statements must be sent with the returned context.
// With the original one, pgx would make a span of each statement, and end the span before the commit.
func (s *Space) span(ctx context.Context, conn *pgx.Conn, sql statement) (quiet context.Context, end func(pgconn.CommandTag, error)) {
	if s.tracer == nil || !tracing.Recorded(ctx) {
		return ctx, func(pgconn.CommandTag, error) {}
	}
	span := s.tracer.TraceQueryStart(ctx, conn, pgx.TraceQueryStartData{SQL: sql.sql})
	return trace.ContextWithSpan(ctx, nil), func(done pgconn.CommandTag, err error) {
		s.tracer.TraceQueryEnd(span, conn, pgx.TraceQueryEndData{CommandTag: done, Err: err})
	}
}
