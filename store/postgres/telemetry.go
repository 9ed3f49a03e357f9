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
)

// recorder takes the figures of a store: see [metrics.Store].
type recorder interface {
	Statement(ctx context.Context, name string, took time.Duration, err error)
	Batch(operation string, items int)
	Observe(state func() metrics.StoreState)
}

var _ recorder = (*metrics.Store)(nil)

// begins is when a statement begins, on a connection that is had already; zero when
// nobody wants to know.
func (s *Store) begins() time.Time {
	if s.metrics == nil {
		return time.Time{}
	}
	return time.Now()
}

// ends records a statement that began.
func (s *Store) ends(ctx context.Context, name string, began time.Time, err error) {
	if s.metrics != nil {
		s.metrics.Statement(ctx, name, time.Since(began), err)
	}
}

// measured carries out a statement that belongs to no operation, and records it.
func (s *Store) measured(ctx context.Context, sql statement, do func(sql string) error) error {
	began := s.begins()
	err := do(sql.sql)
	s.ends(ctx, sql.name, began, err)
	return err
}

// States of the listener.
const (
	listenerOff        = "off"
	listenerConnecting = "connecting"
	listenerListening  = "listening"
)

// state says what the listener does.
func (e *listener) state() string {
	e.mu.Lock()
	on := e.on
	e.mu.Unlock()
	switch {
	case e.hearing.Load():
		return listenerListening
	case on && e.s.listens():
		return listenerConnecting
	default:
		return listenerOff
	}
}

// figures is what is true of the store now. The listener's connection belongs to no pool.
func (s *Store) metricsState() metrics.StoreState {
	f := metrics.StoreState{Listener: s.listener.state()}
	s.mu.Lock()
	r := s.started
	s.mu.Unlock()
	if r == nil {
		f.Listener = listenerOff
		return f
	}
	for _, pool := range []*pgxpool.Pool{r.shared, r.renewals} {
		stat := pool.Stat()
		f.Used += int(stat.AcquiredConns())
		f.Idle += int(stat.IdleConns())
		f.Max += int(stat.MaxConns())
		f.Waited += stat.EmptyAcquireCount()
		f.WaitedFor += stat.EmptyAcquireWaitTime()
	}
	return f
}

// newTracer makes spans of statements and of new connections, where there is a recorded
// span in their context and nowhere else. It is only those two of all that pgx can tell:
// a statement is one span, whether it had to be prepared first, and also where it takes a
// transaction of several (see inTransaction). Arguments stand in no span.
func newTracer(spans trace.TracerProvider) pgx.QueryTracer {
	t := otelpgx.NewTracer(
		otelpgx.WithTracerProvider(spans),
		otelpgx.WithMeterProvider(metricnoop.NewMeterProvider()), // figures are made here
		otelpgx.WithSpanNameFunc(nameOf),
	)
	return struct {
		pgx.QueryTracer
		pgx.ConnectTracer
	}{t, t}
}

// nameOf is the name of a statement of this package, else its first word.
func nameOf(sql string) string {
	text, ours := strings.CutPrefix(sql, mark)
	name, _, _ := strings.Cut(text, " ")
	if !ours && name == "" {
		return "sql"
	}
	return name
}

// span makes one span of a statement that takes a transaction of several, which are to be
// sent with the context that it returns: pgx tells of them, too, and would end the span
// before the commit.
func (s *Store) span(ctx context.Context, conn *pgx.Conn, sql statement) (quiet context.Context, end func(pgconn.CommandTag, error)) {
	if s.tracer == nil {
		return ctx, func(pgconn.CommandTag, error) {}
	}
	span := s.tracer.TraceQueryStart(ctx, conn, pgx.TraceQueryStartData{SQL: sql.sql})
	return trace.ContextWithSpan(ctx, nil), func(done pgconn.CommandTag, err error) {
		s.tracer.TraceQueryEnd(span, conn, pgx.TraceQueryEndData{CommandTag: done, Err: err})
	}
}
