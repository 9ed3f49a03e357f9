package redis_test

import (
	"flag"
	"fmt"
	"log"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace"
	"go.uber.org/goleak"

	"github.com/locksidecar/locksidecar/internal/testing/process"
	"github.com/locksidecar/locksidecar/internal/testing/redistest"
	"github.com/locksidecar/locksidecar/store/cas"
	"github.com/locksidecar/locksidecar/store/cas/castest"
	"github.com/locksidecar/locksidecar/store/redis"
	"github.com/locksidecar/locksidecar/store/storetest"
)

// shared is one server for the tests that do not harm it. Each uses a database of its own.
var shared *redistest.Server

const (
	// atOnce is the number of parallel tests without -parallel. Tests mostly wait for leases to end.
	atOnce    = "8"
	databases = 1 << 12
)

func TestMain(m *testing.M) {
	err := flag.Set("test.parallel", atOnce)
	if err != nil {
		log.Fatal(err)
	}
	storetest.Understates(time.Second) // by a round trip, which is long while tests compete for the processor
	if shared, err = redistest.Run("--databases", fmt.Sprint(databases)); err != nil {
		log.Fatal(err)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		shared.Stop()
		os.Exit(code)
	}), goleak.IgnoreTopFunction("syscall.Syscall6"), // the thread that keeps the server
		goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial")) // it tries a dead server each second, and ends then
}

var used atomic.Int64

// server opens backends on one URL.
type server struct {
	t      *testing.T
	url    string
	limit  time.Duration
	ttl    time.Duration
	quick  bool
	logger *slog.Logger
	traces trace.TracerProvider
}

// one returns a database of the shared server.
func one(t *testing.T) *server {
	return &server{t: t, url: fmt.Sprintf("redis://%s/%d", shared.Address, used.Add(1))}
}

func at(t *testing.T, s *redistest.Server) *server {
	return &server{t: t, url: "redis://" + s.Address}
}

// Connect implements [castest.Server].
func (s *server) Connect() cas.Server {
	s.t.Helper()
	b, err := redis.NewServer(redis.Config{ServerConfig: cas.ServerConfig{URL: s.url, Timeout: s.limit, Logger: s.logger, Tracers: s.traces}, TTL: s.ttl, Quick: s.quick})
	if err != nil {
		s.t.Fatal(err)
	}
	return b
}

func TestBackend(t *testing.T) {
	t.Parallel()
	castest.Run(t, func(t *testing.T) castest.Server { return one(t) })
}

// behind is a server with a link that a test breaks.
type behind struct{ *server }

func (b behind) Behind() (castest.Server, castest.Faults) {
	link := process.NewLink(b.t, shared.Address)
	return &server{t: b.t, url: "redis://" + link.Address + b.database(), limit: time.Second}, link
}

func (s *server) database() string { return s.url[strings.LastIndex(s.url, "/"):] }

// Proves: promise 9
func TestFaults(t *testing.T) {
	t.Parallel()
	castest.RunFaulty(t, func(t *testing.T) castest.Faulty { return behind{one(t)} })
}

// replicated is a server with a replica.
type replicated struct {
	*server
	primary, replica *redistest.Server
}

// FailOver makes the replica the primary, which copies it to the server, and makes that the primary again.
func (r replicated) FailOver(t *testing.T, forgotten func()) {
	t.Helper()
	r.replica.CaughtUp(t, r.primary)
	r.replica.Forget(t)
	forgotten()
	r.replica.Promote(t)
	r.primary.Follow(t, r.replica.Address)
	r.primary.Promote(t)
}

// Proves: A9
func TestHistories(t *testing.T) {
	t.Parallel()
	castest.RunForgetful(t, func(t *testing.T) castest.Forgetful {
		a, b := redistest.Start(t), redistest.Start(t)
		b.Follow(t, a.Address)
		s := at(t, a)
		s.ttl = 100 * time.Millisecond
		return replicated{s, a, b}
	})
}

// Proves: A9
func TestConformance(t *testing.T) {
	t.Parallel()
	castest.RunConformance(t, one(t))
}

// TestViews: the instances of a process, which share the connections and the subscription, keep all rules among themselves.
func TestViews(t *testing.T) {
	t.Parallel()
	castest.RunViews(t, func(t *testing.T) castest.Server { return one(t) })
}
