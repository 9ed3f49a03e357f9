package e2e

import (
	"net"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
)

// TestFewDescriptors: connections that do nothing do not take the descriptors that the sidecar needs for its store and its health.
// Proves: threat flood
func TestFewDescriptors(t *testing.T) {
	t.Parallel()
	o, url := onPostgres(t)
	s := launchBy(t, folder(t), o.with(options{"TTL": "6s", "ADMIN_ADDR": "127.0.0.1:0"}), nil, nil,
		"sh", "-c", `ulimit -n 256; exec "$0" serve`, binary)
	s.await("ready", s.tryReady)
	_, admin := s.listening()
	holder := dial(t, s.socket)
	holder.acquire("k", "")
	for range 300 { // they are accepted, refused, or wait in the listener's queue
		if idle, err := net.DialTimeout("unix", s.socket, time.Second); err == nil {
			t.Cleanup(func() { _ = idle.Close() })
		}
	}
	s.await("refusals", func() bool { return len(s.logged("too many connections")) > 0 })
	dialTCP(t, admin).call("GET", "/healthz", "").want(200, "")
	for range 3 {
		pgtest.Query[int64](t, url, `SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()`)
		time.Sleep(2 * time.Second) // a renewal falls into each pause
	}
	if view := holder.call("GET", lockPath("k"), "", "Cache-Control: no-cache"); view.json["mine"] != true {
		t.Errorf("the lock is lost: %s", view.body)
	}
	if said := s.logged("the limit on open files limits the connections"); len(said) != 1 {
		t.Errorf("logged %q", said)
	}
}
