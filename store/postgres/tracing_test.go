package postgres_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/postgres"
)

// traced is a store whose statements have spans.
type traced struct {
	*postgres.Store
	spans    *tracetest.InMemoryExporter
	provider *sdktrace.TracerProvider
}

func newTraced(t *testing.T, config postgres.Config, options ...sdktrace.TracerProviderOption) traced {
	t.Helper()
	spans := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(append(options, sdktrace.WithSyncer(spans))...)
	t.Cleanup(func() { _ = provider.Shutdown(context.Background()) })
	config.Tracers, config.AutoMigrate = provider, true
	s := startWith(t, config, store.Identity{Namespace: "n", Instance: uuid.NewString(), Pod: "p"})
	return traced{s, spans, provider}
}

// trial is the span of the check of a connection that was idle for a second. On a busy machine, any
// connection may have been idle.
const trial = "--"

// call runs a function in a span of its own and returns the spans below.
func (s traced) call(t *testing.T, do func(context.Context)) []tracetest.SpanStub {
	t.Helper()
	s.spans.Reset()
	ctx, call := s.provider.Tracer("test").Start(t.Context(), "call")
	do(ctx)
	call.End()
	var found []tracetest.SpanStub
	for _, span := range s.spans.GetSpans() {
		if span.Name == "call" || span.Name == trial {
			continue
		}
		if span.SpanContext.TraceID() != call.SpanContext().TraceID() {
			t.Errorf("span %q belongs to another trace", span.Name)
		}
		found = append(found, span)
	}
	return found
}

const secret = `{"secret":"7f3a91"}`

func TestStatementsAreSpansOfTheirCalls(t *testing.T) {
	t.Parallel()
	for name, listen := range map[string]postgres.Listen{"own sessions": postgres.ListenAuto, "shared sessions": postgres.ListenNever} {
		t.Run(name, func(t *testing.T) {
			s := newTraced(t, postgres.Config{URL: cluster.NewDatabase(t), Listen: listen})
			lease := openLease(t, s, time.Hour)
			ask, wait := askFor("k", lease), askFor("k", lease)
			ask.Data, ask.Session, ask.Traceparent = []byte(secret), "session-7f3a91", "trace-7f3a91"
			wait.Data = []byte(secret)
			var token int64
			for _, step := range []struct {
				spans []string
				rows  int64
				do    func(context.Context) error
			}{
				{[]string{"acquire_one"}, 1, func(ctx context.Context) error {
					answers, err := s.Acquire(ctx, []store.Ask{ask})
					token = answers[0].Token
					return err
				}},
				{[]string{"ask"}, 1, func(ctx context.Context) error {
					_, err := s.Enqueue(ctx, []store.Ask{wait})
					return err
				}},
				{[]string{"acquire_one", "read"}, 1, func(ctx context.Context) error { // a refused acquire
					_, err := s.Acquire(ctx, []store.Ask{askFor("k", lease)})
					return err
				}},
				{[]string{"release_one", "release"}, 1, func(ctx context.Context) error {
					_, err := s.Release(ctx, []store.Claim{{Key: "k", Token: token, Lease: lease, Traceparent: "trace-7f3a91"}})
					return err
				}},
			} {
				found := s.call(t, func(ctx context.Context) {
					if err := step.do(ctx); err != nil {
						t.Error(err)
					}
				})
				if len(found) != len(step.spans) {
					t.Fatalf("%d spans, want %v: %v", len(found), step.spans, found)
				}
				for i, span := range found {
					if span.Name != step.spans[i] || span.SpanKind != trace.SpanKindClient || span.Status.Code == codes.Error {
						t.Errorf("span %q (%s, %v), want %q", span.Name, span.SpanKind, span.Status, step.spans[i])
					}
				}
				if rows := attributeOf(found[len(found)-1], "pgx.rows_affected").AsInt64(); rows != step.rows {
					t.Errorf("%d rows, want %d", rows, step.rows)
				}
				tellsNoArguments(t, found)
			}
		})
	}
}

func attributeOf(span tracetest.SpanStub, key attribute.Key) attribute.Value {
	for _, a := range span.Attributes {
		if a.Key == key {
			return a.Value
		}
	}
	return attribute.Value{}
}

// tellsNoArguments checks that spans contain the text of a statement, with $1 and so on, but no
// values.
func tellsNoArguments(t *testing.T, spans []tracetest.SpanStub) {
	t.Helper()
	for _, span := range spans {
		text := attributeOf(span, "db.query.text").AsString()
		if !strings.HasPrefix(text, "/* locksidecar:"+span.Name+" */") || !strings.Contains(text, "$1") {
			t.Errorf("the text of %q is %q", span.Name, text)
		}
		if all := fmt.Sprintf("%+v", span); strings.Contains(all, "7f3a91") {
			t.Errorf("a span contains an argument: %s", all)
		}
	}
}

// The span of a failure has the reason, but no values.
func TestAFailedStatementIsAFailedSpan(t *testing.T) {
	t.Parallel()
	for name, listen := range map[string]postgres.Listen{"own sessions": postgres.ListenAuto, "shared sessions": postgres.ListenNever} {
		t.Run(name, func(t *testing.T) {
			url := cluster.NewDatabase(t)
			s := newTraced(t, postgres.Config{URL: url, Listen: listen})
			lease := openLease(t, s, time.Hour)
			token := want(t, acquire(t, s, askFor("k", lease)), store.Granted).Token
			conn := connect(t, url)
			exec(t, conn, "BEGIN")
			exec(t, conn, "SELECT FROM locksidecar.locks FOR UPDATE")
			found := s.call(t, func(ctx context.Context) {
				amended, err := s.Amend(ctx, []store.Change{{Key: "k", Token: token, Lease: lease, SetData: true, Data: []byte(secret)}})
				if err != nil || amended[0].Status != store.ClaimRowLocked {
					t.Errorf("%v, %v", amended, err)
				}
			})
			exec(t, conn, "ROLLBACK")
			if len(found) != 1 || found[0].Name != "amend" || found[0].Status.Code != codes.Error ||
				attributeOf(found[0], "pgx.sql_state").AsString() != "55P03" {
				t.Fatalf("got %+v", found)
			}
			tellsNoArguments(t, found)
		})
	}
}

// Statements have no spans if the call is not recorded: neither root spans, nor spans below calls
// that are not sampled.
func TestUnrecordedCallsHaveNoSpans(t *testing.T) {
	t.Parallel()
	url := cluster.NewDatabase(t)
	s := newTraced(t, postgres.Config{URL: url})
	s.Listen(true)
	poll(t, "it listens", func() bool { return !s.Traits().Polls })
	useAll(t, s.Store)
	if found := s.spans.GetSpans(); len(found) > 0 {
		t.Errorf("%d spans, the first is %q", len(found), found[0].Name)
	}

	unsampled := newTraced(t, postgres.Config{URL: url}, sdktrace.WithSampler(sdktrace.NeverSample()))
	if found := unsampled.call(t, func(ctx context.Context) {
		if _, err := unsampled.Get(ctx, []string{"k"}); err != nil {
			t.Error(err)
		}
	}); len(found) > 0 {
		t.Errorf("%d spans, the first is %q", len(found), found[0].Name)
	}
}

// Without tracing, a recorded span of the caller has no spans below it.
func TestWithoutTracersThereAreNoSpans(t *testing.T) {
	t.Parallel()
	spans := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))
	t.Cleanup(func() { _ = provider.Shutdown(context.Background()) })
	s := startStore(t, cluster.NewDatabase(t), store.Identity{Namespace: "n", Instance: "i", Pod: "p"})
	ctx, call := provider.Tracer("test").Start(t.Context(), "call")
	if _, err := s.Get(ctx, []string{"k"}); err != nil {
		t.Fatal(err)
	}
	call.End()
	if found := spans.GetSpans(); len(found) != 1 {
		t.Errorf("%d spans, want only the call's", len(found))
	}
}

// A call that needs a new connection has spans for making it.
func TestConnectingIsASpan(t *testing.T) {
	t.Parallel()
	s := newTraced(t, postgres.Config{URL: cluster.NewDatabase(t)})
	lease := openLease(t, s, time.Hour)
	found := s.call(t, func(ctx context.Context) { // this makes the connection of renewals
		if _, err := s.Renew(ctx, []store.LeaseID{lease}); err != nil {
			t.Error(err)
		}
	})
	var names []string
	for _, span := range found {
		names = append(names, span.Name)
	}
	if got := strings.Join(names, " "); got != "connect connection_check connection_set_up lease_renew" {
		t.Errorf("spans: %s", got)
	}
}

func TestNamesOfSpans(t *testing.T) {
	t.Parallel()
	for sql, want := range map[string]string{
		"/* locksidecar:acquire_one */ INSERT INTO x": "acquire_one",
		"BEGIN ISOLATION LEVEL READ COMMITTED":        "BEGIN",
		"ROLLBACK":                                    "ROLLBACK",
		"":                                            "sql",
	} {
		if got := postgres.NameOf(sql); got != want {
			t.Errorf("%q: %q, want %q", sql, got, want)
		}
	}
}
