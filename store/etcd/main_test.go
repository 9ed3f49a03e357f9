package etcd_test

import (
	"flag"
	"fmt"
	"log"
	"log/slog"
	"net/url"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/locksidecar/locksidecar/internal/testing/etcdtest"
	"github.com/locksidecar/locksidecar/internal/testing/process"
	"github.com/locksidecar/locksidecar/store/cas"
	"github.com/locksidecar/locksidecar/store/cas/castest"
	"github.com/locksidecar/locksidecar/store/etcd"
	"github.com/locksidecar/locksidecar/store/storetest"
)

// cluster is one server for the tests that do not harm it. Each uses a prefix of its own.
var cluster *etcdtest.Cluster

// atOnce is the number of parallel tests without -parallel. Tests mostly wait for leases to end.
const atOnce = "8"

func TestMain(m *testing.M) {
	err := flag.Set("test.parallel", atOnce)
	if err != nil {
		log.Fatal(err)
	}
	storetest.Coarse(time.Second) // etcd grants whole seconds, at least two
	if cluster, err = etcdtest.Run(); err != nil {
		log.Fatal(err)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		cluster.Stop()
		os.Exit(code)
	}), goleak.IgnoreTopFunction("syscall.Syscall6")) // the thread that keeps the server
}

var prefixes atomic.Int64

// server opens backends on a cluster, under one prefix.
type server struct {
	t      *testing.T
	url    url.URL
	limit  time.Duration
	logger *slog.Logger
}

func on(t *testing.T, c *etcdtest.Cluster) *server {
	prefix := fmt.Sprintf("/test%d", prefixes.Add(1))
	return &server{t: t, url: url.URL{Scheme: "etcd", Host: c.Addresses(), Path: prefix}}
}

// Connect implements [castest.Server].
func (s *server) Connect() cas.Server {
	s.t.Helper()
	b, err := etcd.NewServer(etcd.Config{URL: s.url.String(), Timeout: s.limit, Logger: s.logger})
	if err != nil {
		s.t.Fatal(err)
	}
	return b
}

// Behind implements [castest.Faulty].
func (s *server) Behind() (castest.Server, castest.Faults) {
	link := process.NewLink(s.t, s.url.Host)
	far := &server{t: s.t, url: s.url, limit: time.Second}
	far.url.Host = link.Address
	return far, link
}

// Proves: promise 9
func TestFaults(t *testing.T) {
	t.Parallel()
	castest.RunFaulty(t, func(t *testing.T) castest.Faulty { return on(t, cluster) })
}

func TestBackend(t *testing.T) {
	t.Parallel()
	castest.Run(t, func(t *testing.T) castest.Server { return on(t, cluster) })
}

// TestViews: the instances of a process, which share a connection, keep all rules among themselves.
func TestViews(t *testing.T) {
	t.Parallel()
	castest.RunViews(t, func(t *testing.T) castest.Server { return on(t, cluster) })
}

// Proves: A7
func TestConformance(t *testing.T) {
	t.Parallel()
	castest.RunConformance(t, on(t, cluster))
}
