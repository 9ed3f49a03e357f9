package mysql_test

import (
	"context"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testing/await"
	"github.com/locksidecar/locksidecar/internal/testing/process"
	"github.com/locksidecar/locksidecar/store"
)

// renewsSoon renews until ctx ends. No renewal takes as long as the shortest TTL.
func (r *rig) renewsSoon(ctx context.Context) (done <-chan struct{}) {
	lease, ended := r.OpenLease(time.Minute), make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			began := time.Now()
			if _, _, err := r.Renew(r.Ctx, []store.LeaseID{lease}); err != nil {
				r.T.Error(err)
			}
			if took := time.Since(began); took > 450*time.Millisecond {
				r.T.Errorf("a renewal took %s", took)
			}
		}
	}()
	return ended
}

// The server still keeps the sessions that an instance had before its network was cut: the one in which it slept, and the one for whose lock it
// waited. It sleeps in new ones, and no renewal waits for that.
// Proves: promise 6
func TestOldSessionsAfterACutNetwork(t *testing.T) {
	t.Parallel()
	s := on(t, shared)
	writer := s.ready("writer")
	link, direct := process.NewLink(t, shared.Address), s.url
	s.url = s.At(link.Address)
	old := s.sleeping("one", always)
	link.Hold()
	s.url = direct
	r := s.ready("one")
	ctx, end := context.WithCancel(t.Context())
	defer end()
	renewed := r.renewsSoon(ctx)
	r.listens()
	end()
	<-renewed
	writer.Write("one", 1)
	r.Reads(1)
	link.Cut()
	old.Stop()
}

// waiting is the transaction that waits for a row in the database, and when its wait began; empty: none.
func (s *session) waiting() (is string) {
	s.t.Helper()
	s.exec("DO SLEEP(0.15)") // the view is made anew only if nobody has read it for 0.1 s
	err := s.QueryRowContext(context.Background(), `SELECT COALESCE(MAX(CONCAT(t.trx_id, ' ', t.trx_wait_started)), '') FROM information_schema.innodb_trx t
		JOIN information_schema.processlist p ON p.id = t.trx_mysql_thread_id WHERE t.trx_state = 'LOCK WAIT' AND p.db = DATABASE()`).Scan(&is)
	if err != nil {
		s.t.Fatal(err)
	}
	return is
}

// An operator's transaction keeps a letter locked, so its reader cannot delete it for a while. Renewals go on meanwhile.
// Proves: promise 6
func TestALockedLetterHoldsUpNoRenewal(t *testing.T) {
	t.Parallel()
	s := on(t, shared)
	s.limit = await.Patience // the deletion is tried all the time
	operator, watcher, writer := s.session(), s.session(), s.ready("writer")
	r := s.sleeping("one", 2*time.Second)
	lease := r.OpenLease(time.Minute)
	r.Expect(false, false, false)
	await.Until(t, "nobody reads letters", func() bool { state, _ := r.Way(); return state == "off" })
	writer.Write("one", 1)
	operator.exec("BEGIN")
	operator.exec("UPDATE locksidecar_letters SET base = base + 1")
	r.Expect(true, false, true)
	watcher.awaitLockWait()
	// A wait takes 2 s, and begins again. A renewal that ends within one did not wait for it.
	during := false
	for try := 0; try < 3 && !during; try++ {
		before := watcher.waiting()
		if !r.Keeps(lease) {
			t.Error("the lease was not renewed")
		}
		during = before != "" && watcher.waiting() == before
	}
	if !during {
		t.Error("each renewal waited until the deletion of a letter had given up")
	}
	operator.exec("COMMIT")
	r.Reads(1)
}
