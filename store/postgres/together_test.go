package postgres_test

import (
	"context"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testing/pgproxy"
	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/postgres"
)

// A reader names another limit than a waiter that has expired, so the waiter must be reaped before the reader is
// answered. A later ask of the same batch must not get a queue position before it.
func TestAskThatLooksAgainIsNotOvertakenInItsBatch(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	want(t, acquire(t, s, askFor("k", s.lease)), store.Granted)
	dead := s.shareOf(5)
	dead.Lease = openLease(t, s, time.Hour)
	want(t, enqueue(t, s, dead), store.Queued)
	exec(t, s.conn, "UPDATE locksidecar.leases SET expires_at = clock_timestamp() WHERE id = $1", dead.Lease)
	reader, writer := s.shareOf(3), askFor("k", s.lease)
	answers, err := s.Enqueue(t.Context(), []store.Ask{reader, writer})
	if err != nil {
		t.Fatal(err)
	}
	want(t, answers[0], store.Queued)
	want(t, answers[1], store.Queued)
	first := pgtest.Query[[16]byte](t, s.url, "SELECT attempt_id FROM locksidecar.waiters ORDER BY id LIMIT 1")
	if store.AttemptID(first) != reader.ID {
		t.Error("the later writer is in front of the reader")
	}
}

// One batch releases the last shares of a key. The only waiter looks expired, and its lease is locked, because a renewal
// is under way. The shares have ended, so the answer must not be that of a locked row: a repeat would not find them.
func TestSharesReleasedBeforeALockedWaiter(t *testing.T) {
	t.Parallel()
	s := hasty(t)
	first := want(t, acquire(t, s, s.shareOf(0)), store.Granted).Token
	second := want(t, acquire(t, s, s.shareOf(0)), store.Granted).Token
	writer := askFor("k", openLease(t, s, time.Hour))
	want(t, enqueue(t, s, writer), store.Queued)
	exec(t, s.conn, "UPDATE locksidecar.leases SET expires_at = clock_timestamp() WHERE id = $1", writer.Lease)
	letGo := s.operator("leases", "id = '"+writer.Lease.String()+"'")
	claims := []store.Claim{{Key: "k", Token: first, Lease: s.lease}, {Key: "k", Token: second, Lease: s.lease}}
	verdicts, err := s.Release(t.Context(), claims)
	if err != nil {
		t.Fatal(err)
	}
	letGo()
	for i, v := range verdicts {
		if v.Status != store.Holds {
			t.Errorf("claim %d: status %d, and its share has ended: %v", i, v.Status, s.slots())
		}
	}
	// The waiter's lease was renewed after all: its next check gets the key.
	exec(t, s.conn, "UPDATE locksidecar.leases SET expires_at = clock_timestamp() + interval '1 hour' WHERE id = $1", writer.Lease)
	want(t, check(t, s, writer), store.Granted)
}

// A key has many readers, and many exclusive calls try to get it in one batch. The readers must not be read for each of
// these calls, because the statement would run into its time limit, and with it the calls for other keys. What is read is counted: how long the statement
// takes is the machine's affair, so here its limit is far away.
func TestManyTriesOfASharedKey(t *testing.T) {
	t.Parallel()
	url := cluster.NewDatabase(t)
	slow := postgres.Config{URL: url, Failover: store.FailoverQuick, AutoMigrate: true, Timeout: 2 * time.Minute}
	id := store.Identity{Namespace: "n", Instance: "i", Pod: "p"}
	st := only(t, slow, id, postgres.Patient)
	start(t, st, nil)
	s := sceneOf(t, url, st)
	const many = 1000
	for range many / 100 {
		asks := make([]store.Ask, 100)
		for i := range asks {
			asks[i] = s.shareOf(0)
		}
		if _, err := s.Acquire(t.Context(), asks); err != nil {
			t.Fatal(err)
		}
	}
	var asks []store.Ask
	for range many {
		asks = append(asks, askFor("k", s.lease))
	}
	asks = append(asks, askFor("other", s.lease))
	var answers []store.Answer
	pages := pagesRead(t, s.url, func() (err error) {
		answers, err = s.Acquire(t.Context(), asks)
		return err
	})
	if pages > 200*many { // each reading of all readers takes two pages a reader
		t.Errorf("%d pages were read for %d calls", pages, many)
	}
	if a := want(t, answers[0], store.Held); a.Lock.HoldersCount != many {
		t.Errorf("held by %d", a.Lock.HoldersCount)
	}
	want(t, answers[many], store.Granted)
}

// Calls for several keys are enqueued by one statement. One of them cannot be, so each is asked for again, and by then
// the holder of another key has died. Its lease is locked, so the call is answered that nothing changed. It must not
// have a queue position then, because nobody would cancel it.
// Proves: promise 9
func TestARefusedBatchLeavesNoWaiter(t *testing.T) {
	t.Parallel()
	s := hasty(t)
	dying, gone := openLease(t, s, time.Hour), openLease(t, s, time.Hour)
	var asks []store.Ask
	for _, key := range []string{"a", "b", "c", "d"} {
		held := askFor(key, s.lease)
		if key == "a" {
			held.Lease = dying
		}
		want(t, acquire(t, s, held), store.Granted)
		asks = append(asks, askFor(key, s.lease))
	}
	asks[3].Lease = gone
	exec(t, s.conn, `CREATE FUNCTION dies() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		PERFORM pg_sleep(extract(epoch FROM expires_at - clock_timestamp()) + 0.01) FROM locksidecar.leases WHERE instance = 'i' AND ttl = '59 min';
		RETURN NEW;
	END $$`)
	exec(t, s.conn, "CREATE TRIGGER dies BEFORE INSERT ON locksidecar.waiters FOR EACH ROW WHEN (NEW.key = 'a') EXECUTE FUNCTION dies()")
	exec(t, s.conn, "UPDATE locksidecar.leases SET expires_at = clock_timestamp() WHERE id = $1", gone)
	exec(t, s.conn, "UPDATE locksidecar.leases SET expires_at = clock_timestamp() + interval '1 s', ttl = '59 min' WHERE id = $1", dying)
	exec(t, s.other, "BEGIN")
	exec(t, s.other, "SELECT FROM locksidecar.leases WHERE id = $1 FOR SHARE", dying)
	answers, err := s.Enqueue(t.Context(), asks)
	if err != nil {
		t.Fatal(err)
	}
	want(t, answers[0], store.RowLocked)
	want(t, answers[1], store.Queued)
	want(t, answers[2], store.Queued)
	want(t, answers[3], store.LeaseLost)
	if n := s.count("waiters", "key = 'a'"); n != 0 {
		t.Errorf("%d calls wait for a", n)
	}
}

// A call is repeated under another lease, for a shared key. So its queue position moves, and the key must be settled,
// but by then its row is locked. The answer must not be that nothing changed, because nobody would cancel the call.
// Proves: promise 9
func TestAMovedPositionIsNotForgotten(t *testing.T) {
	t.Parallel()
	url := cluster.NewDatabase(t)
	proxy := pgproxy.Start(t, url)
	s := startWith(t, postgres.Config{URL: proxy.URL()}, store.Identity{Namespace: "n", Instance: "i", Pod: "p"})
	first, second := openLease(t, s, time.Hour), openLease(t, s, time.Hour)
	reader, writer := askFor("k", first), askFor("k", first)
	reader.Shared = true
	want(t, acquire(t, s, reader), store.Granted)
	want(t, enqueue(t, s, writer), store.Queued)
	operator := connect(t, url)
	proxy.On("ask", pgproxy.AfterCommandComplete, func() {
		_, _ = operator.Exec(context.Background(), "BEGIN; SELECT FROM locksidecar.locks FOR UPDATE")
	})
	writer.Lease = second
	answers, err := s.Enqueue(t.Context(), []store.Ask{writer})
	if !store.OutcomeUnknown(err) {
		t.Errorf("%+v, %v; want an unknown outcome", answers, err)
	}
	exec(t, operator, "ROLLBACK")
	if lease := pgtest.Query[[16]byte](t, url, "SELECT lease_id FROM locksidecar.waiters"); lease != [16]byte(second) {
		t.Error("the position has not moved")
	}
}
