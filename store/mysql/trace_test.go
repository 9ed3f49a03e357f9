package mysql_test

import (
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"testing"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/locksidecar/locksidecar/store/cas"
	"github.com/locksidecar/locksidecar/store/cas/castest"
	"github.com/locksidecar/locksidecar/store/mysql"
)

// A recorded call has spans of its operation, of the connect and of the query. They contain no statement, key, data or password,
// also if the server refuses. A call that is not recorded has none.
func TestSpans(t *testing.T) {
	t.Parallel()
	s := on(t, shared)
	kept := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(kept))
	server, err := mysql.NewServer(mysql.Config{ServerConfig: cas.ServerConfig{URL: s.url, Tracers: provider}})
	if err != nil {
		t.Fatal(err)
	}
	b := castest.Only(t, server, "one")
	castest.Start(t, b)
	if _, err := b.Swap(t.Context(), []cas.Swap{{Key: "ns/warm", Data: []byte("x")}}); err != nil {
		t.Fatal(err)
	}
	if found := kept.GetSpans(); len(found) > 0 {
		t.Errorf("%d spans of calls that are not recorded", len(found))
	}
	shared.KillUser(t, s.Name) // so that the next call connects
	ctx, call := provider.Tracer("test").Start(t.Context(), "call")
	const key, data = "ns/hidden", "concealed"
	if _, err := b.Swap(ctx, []cas.Swap{{Key: key, Data: []byte(data)}}); err != nil {
		t.Fatal(err)
	}
	s.session().exec("CREATE TRIGGER refuse BEFORE UPDATE ON locksidecar_locks FOR EACH ROW SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'hidden'")
	records, _, err := b.Load(ctx, []string{key}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Swap(ctx, []cas.Swap{{Key: key, Version: records[0].Version, Data: []byte(data)}}); err == nil {
		t.Error("the trigger did not refuse")
	}
	call.End()
	var names []string
	var failed int
	for _, span := range kept.GetSpans() {
		names = append(names, span.Name)
		text := fmt.Sprint(span.Name, span.Attributes, span.Events, span.Status, span.Links)
		for _, secret := range []string{"hidden", data, hex.EncodeToString([]byte(key)), hex.EncodeToString([]byte(data)), "SELECT", s.Name + ":"} {
			if strings.Contains(text, secret) {
				t.Errorf("the span %s contains %q: %s", span.Name, secret, text)
			}
		}
		if span.Name == "mysql_swap" && strings.Contains(span.Status.Description, "error 1644") {
			failed++
		}
	}
	for _, want := range []string{"mysql_swap", "mysql_load", "sql.connector.connect", "sql.conn.query"} {
		if !slices.Contains(names, want) {
			t.Errorf("no span %s among %v", want, names)
		}
	}
	if failed != 1 {
		t.Errorf("%d spans of the refusal, want 1", failed)
	}
}
