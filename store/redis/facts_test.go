package redis_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/locksidecar/locksidecar/internal/testing/await"
	"github.com/locksidecar/locksidecar/internal/testing/certtest"
	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
	"github.com/locksidecar/locksidecar/internal/testing/redistest"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/cas"
	"github.com/locksidecar/locksidecar/store/cas/fake"
)

// The log and GET /readyz tell where grants are kept, and also when that changes while the sidecar runs.
func TestWhereGrantsAreKept(t *testing.T) {
	t.Parallel()
	d := redistest.Start(t, "--maxmemory", "100mb", "--maxmemory-policy", "noeviction")
	s := at(t, d)
	log := s.logged()
	r := s.ready("one")
	facts := func() string {
		f := r.Details()
		return fmt.Sprintf("%s, %s, %s, %s, %s", f["durability"], f["maxmemory"], f["maxmemory_policy"], f["replicas"], f["appendfsync"])
	}
	becomes := func(want, line string) {
		t.Helper()
		await.Until(t, "the facts are "+want, func() bool {
			d.Do(t, "CLIENT", "KILL", "TYPE", "PUBSUB") // a broken connection makes the backend look, if there is one now
			return facts() == want && log.Has(line)
		})
	}
	version := d.Info(t, "server", "redis_version")
	if text, _ := d.Do(t, "INFO", "server").(string); strings.Contains(text, "valkey_version:") {
		version = "Valkey " + d.Info(t, "server", "valkey_version")
	}
	if found := facts(); found != "in memory only, 104857600, noeviction, 0, " || r.Details()["version"] != version {
		t.Errorf("facts: %s of %s, want %s", found, r.Details()["version"], version)
	}
	if !log.Has("Redis keeps locks in memory only") {
		t.Errorf("the log:\n%s", log)
	}
	d.Do(t, "CONFIG", "SET", "appendonly", "yes")
	becomes("in a file that is written later, 104857600, noeviction, 0, everysec", "Redis writes its file later")
	d.Do(t, "CONFIG", "SET", "appendfsync", "always")
	becomes("on the disk of one server, 104857600, noeviction, 0, always", "Redis keeps locks on its disk")
	if found := store.Details(cas.NewSpace(fake.Only(r.Backend), cas.Config{}).View(store.Identity{})); found["durability"] == "" {
		t.Error("the engine hides the facts")
	}
}

// A call that is traced has a span, with that of the client library below. None contains a key, data or the password.
// Proves: threat telemetry reader
func TestTraces(t *testing.T) {
	t.Parallel()
	const secret = "7f3a91"
	d := redistest.Start(t, "--requirepass", secret)
	spans := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))
	t.Cleanup(func() { _ = provider.Shutdown(t.Context()) })
	s := &server{t: t, url: "redis://:" + secret + "@" + d.Address, traces: provider}
	r := s.ready("one")
	r.OpenLease(time.Minute)
	if found := spans.GetSpans(); len(found) != 0 {
		t.Errorf("%d spans without a trace", len(found))
	}
	ctx, call := provider.Tracer("test").Start(r.Ctx, "call")
	if _, err := r.Swap(ctx, []cas.Swap{{Key: "ns/" + secret, Data: []byte(secret)}}); err != nil {
		t.Fatal(err)
	}
	d.Kill()
	if _, err := r.Swap(ctx, []cas.Swap{{Key: "ns/" + secret, Data: []byte(secret)}}); err == nil {
		t.Error("a swap without a server succeeded")
	}
	call.End()
	names := map[string]int{}
	for _, span := range spans.GetSpans() {
		names[span.Name]++
		if span.SpanContext.TraceID() != call.SpanContext().TraceID() {
			t.Errorf("span %q belongs to another trace", span.Name)
		}
		if all := fmt.Sprintf("%+v", span); strings.Contains(all, secret) {
			t.Errorf("a span contains a secret: %s", all)
		}
		if span.Name == "fcall" && !strings.Contains(fmt.Sprint(span.Attributes), "redis://"+d.Address) {
			t.Errorf("the library's span does not name the server: %v", span.Attributes)
		}
	}
	if names["redis_swap"] < 2 || names["fcall"] < 2 {
		t.Errorf("spans: %v", names)
	}
}

// TestTLS: rediss:// encrypts, verifies the server, and shows the client's certificate.
func TestTLS(t *testing.T) {
	t.Parallel()
	authority := certtest.New(t)
	theirs := certtest.Mount(t, authority.Issue("localhost", time.Now().Add(time.Hour)))
	own := certtest.Mount(t, authority.IssueClient("sidecar"))
	ca := certtest.MountFiles(t, map[string][]byte{"ca.crt": authority.PEM(), "other.crt": certtest.New(t).PEM()})
	port, err := pgtest.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	redistest.Start(t, "--tls-port", fmt.Sprint(port), "--tls-cert-file", theirs.CertFile(), "--tls-key-file", theirs.KeyFile(), "--tls-ca-cert-file", ca.File("ca.crt"))
	url := fmt.Sprintf("rediss://localhost:%d?cacert=%s", port, ca.File("ca.crt"))
	pair := "&cert=" + own.CertFile() + "&key=" + own.KeyFile()
	r := (&server{t: t, url: url + pair}).ready("one")
	r.Write("one", 1)
	r.Reads(1)
	for why, other := range map[string]string{
		"unknown authority":         fmt.Sprintf("rediss://localhost:%d?cacert=%s", port, ca.File("other.crt")) + pair,
		"certificate":               url,
		"certificate for 127.0.0.1": fmt.Sprintf("rediss://127.0.0.1:%d?cacert=%s", port, ca.File("ca.crt")) + pair,
	} {
		(&server{t: t, url: other, limit: time.Second}).start("one").Refuses(why)
	}
}
