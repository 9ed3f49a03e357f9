package mysql_test

import (
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testing/await"
	"github.com/locksidecar/locksidecar/store/cas"
	"github.com/locksidecar/locksidecar/store/cas/castest"
	"github.com/locksidecar/locksidecar/store/mysql"
)

// Somebody keeps the row of one instance's lease locked, so that its renewals wait. Those of another instance of the process go on meanwhile.
// Proves: promise 6
func TestALockedLeaseHoldsUpOneInstance(t *testing.T) {
	t.Parallel()
	s := on(t, shared)
	server, err := mysql.NewServer(mysql.Config{ServerConfig: cas.ServerConfig{URL: s.url, Timeout: await.Patience}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Stop)
	if err := server.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	one, two := castest.Start(t, server.View("one")), castest.Start(t, server.View("two"))
	one.BecomesReady()
	locked, other := one.OpenLease(time.Minute), two.OpenLease(time.Minute)
	operator, watcher := s.session(), s.session()
	operator.exec("BEGIN")
	operator.exec("DO (SELECT COUNT(*) FROM (SELECT id FROM locksidecar_leases WHERE id = ? FOR UPDATE) l)", locked[:])
	renewed := make(chan bool, 1)
	go func() { renewed <- one.Keeps(locked) }()
	watcher.awaitLockWait()
	// A wait takes 2 s, and begins again. A renewal that ends within one did not wait for it.
	during := false
	for try := 0; try < 3 && !during; try++ {
		before := watcher.waiting()
		if !two.Keeps(other) {
			t.Error("the other lease was not renewed")
		}
		during = before != "" && watcher.waiting() == before
	}
	if !during {
		t.Error("each renewal of the other instance waited for the lease that is locked")
	}
	operator.exec("COMMIT")
	if !await.Receive(t, renewed, "the end of the renewal") {
		t.Error("the lease was not renewed when its row was free")
	}
}
