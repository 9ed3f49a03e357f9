package proxy

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/valyala/fasthttp"
	sdk "go.opentelemetry.io/otel/sdk/trace"

	"github.com/locksidecar/locksidecar/internal/tracing"
	"github.com/locksidecar/locksidecar/lease"
	"github.com/locksidecar/locksidecar/store"
)

// instant grants and releases everything at once: what is left is the proxy.
type instant struct{ *spy }

func (instant) Acquire(_ context.Context, _ *lease.Session, r lease.Request) (lease.Grant, error) {
	return lease.Grant{
		Key: r.Key, Token: 1 << 40, Session: "3f1c2a9b", Bind: r.Bind, ExpiresIn: 15 * time.Second,
		AcquiredAt: benchTime,
	}, nil
}

func (instant) Release(_ context.Context, _ *lease.Session, r lease.ReleaseRequest) (lease.Released, error) {
	return lease.Released{Key: r.Key, HeldFor: time.Millisecond}, nil
}

func (instant) Get(_ context.Context, _ *lease.Session, key string, _ bool) (lease.View, error) {
	return lease.View{Lock: store.Lock{Key: key, Held: true, Token: 1 << 40, Holder: store.Holder{
		Instance: "pod-1/abc", Pod: "pod-1", Session: "3f1c2a9b", AcquiredAt: benchTime,
	}}, Mine: true}, nil
}

func (i instant) Amend(_ context.Context, _ *lease.Session, r lease.AmendRequest) (lease.Grant, error) {
	return i.Acquire(context.Background(), nil, lease.Request{Key: r.Key})
}

var benchTime = time.Date(2025, 3, 4, 5, 6, 7, 8_000, time.UTC)

// exchange sends a request again and again on one connection, for n answers.
func exchange(b *testing.B, path, request string, next func() bool) {
	nc, err := net.Dial("unix", path)
	if err != nil {
		b.Error(err)
		return
	}
	defer func() { _ = nc.Close() }()
	r := bufio.NewReader(nc)
	var resp fasthttp.Response
	for next() {
		if _, err := nc.Write([]byte(request)); err != nil {
			b.Error(err)
			return
		}
		if err := resp.Read(r); err != nil || resp.StatusCode() != 200 {
			b.Error(err, resp.String())
			return
		}
	}
}

var benchRequests = []struct{ name, text string }{
	{"acquire", requestText("PUT", "/v1/locks/workflow:12345:step", "")},
	{"acquire-body", requestText("PUT", "/v1/locks/workflow:12345:step", `{"wait_ms":5000,"ttl_ms":30000}`)},
	{"release", requestText("DELETE", "/v1/locks/workflow:12345:step?token=1099511627776", "")},
	{"get", requestText("GET", "/v1/locks/workflow:12345:step", "")},
	{"patch", requestText("PATCH", "/v1/locks/workflow:12345:step", `{"token":1099511627776}`)},
}

// BenchmarkRequest measures requests through the socket on 64 connections, and
// beside them an echo by the same server library: what the proxy costs.
func BenchmarkRequest(b *testing.B) {
	path := benchServer(b)
	for _, r := range benchRequests {
		for _, conns := range []int{1, 64} {
			b.Run(fmt.Sprintf("%s/%d", r.name, conns), func(b *testing.B) { benchConns(b, path, r.text, conns) })
		}
	}
	echo := benchEcho(b)
	for _, conns := range []int{1, 64} {
		b.Run(fmt.Sprintf("echo/%d", conns), func(b *testing.B) {
			benchConns(b, echo, benchRequests[0].text, conns)
		})
	}
}

func benchConns(b *testing.B, path, request string, conns int) {
	b.ReportAllocs()
	b.SetParallelism(conns) // times GOMAXPROCS, which is why the rest goes idle
	var started atomic.Int32
	b.RunParallel(func(pb *testing.PB) {
		if int(started.Add(1)) > conns {
			return
		}
		exchange(b, path, request, pb.Next)
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "requests/s")
}

// BenchmarkTraced measures what spans cost: those that nobody records, and those that
// are made and thrown away.
func BenchmarkTraced(b *testing.B) {
	request := requestText("PUT", "/v1/locks/workflow:12345:step", "", appHeader)
	for name, tracer := range map[string]*tracing.Tracer{
		"off":     nil,
		"dropped": tracing.New(sdk.NewTracerProvider(sdk.WithSampler(sdk.NeverSample()))),
		"made":    tracing.New(sdk.NewTracerProvider(sdk.WithSpanProcessor(nowhere{}))),
	} {
		path := benchServer(b, func(c *Config) { c.Tracer = tracer })
		b.Run(name, func(b *testing.B) { benchConns(b, path, request, 1) })
	}
}

// nowhere is where spans go in a benchmark.
type nowhere struct{}

func (nowhere) OnStart(context.Context, sdk.ReadWriteSpan) {}
func (nowhere) OnEnd(sdk.ReadOnlySpan)                     {}
func (nowhere) Shutdown(context.Context) error             { return nil }
func (nowhere) ForceFlush(context.Context) error           { return nil }

func benchServer(b *testing.B, change ...func(*Config)) string {
	path := filepath.Join(b.TempDir(), "s")
	locks := newSpy(b)
	cfg := testConfig(locks.Manager, slog.New(slog.DiscardHandler), path)
	for _, c := range change {
		c(&cfg)
	}
	s := New(cfg)
	s.locks = instant{locks}
	if err := s.Start(context.Background()); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(s.Stop)
	return path
}

func benchEcho(b *testing.B) string {
	path := filepath.Join(b.TempDir(), "e")
	ln, err := net.Listen("unix", path)
	if err != nil {
		b.Fatal(err)
	}
	s := &fasthttp.Server{
		NoDefaultServerHeader: true, NoDefaultDate: true, MaxIdleWorkerDuration: 10 * time.Millisecond,
		Handler: func(ctx *fasthttp.RequestCtx) { ctx.Response.SetBodyRaw(ctx.Request.Header.RequestURI()) },
	}
	go func() { _ = s.Serve(ln) }()
	b.Cleanup(func() { _ = s.Shutdown() })
	return path
}
