package postgres_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/postgres"
)

// pairOfLeases opens two leases that end in a minute, with a TTL of an hour, in the order in which
// statements lock them.
func (s *scene) pairOfLeases() (first, second store.LeaseID) {
	s.Helper()
	leases := []store.LeaseID{openLease(s.T, s, time.Hour), openLease(s.T, s, time.Hour)}
	slices.SortFunc(leases, compareIDs)
	exec(s.T, s.conn, "UPDATE locksidecar.leases SET expires_at = clock_timestamp() + interval '1 min'")
	return leases[0], leases[1]
}

func (s *scene) renewed(lease store.LeaseID) bool {
	s.Helper()
	return pgtest.Query[bool](s.T, s.url,
		"SELECT expires_at > clock_timestamp() + interval '50 min' FROM locksidecar.leases WHERE id = $1", lease)
}

// renewing starts a renewal in the background.
func (s *scene) renewing(leases ...store.LeaseID) (done func() store.Renewal) {
	found := make(chan store.Renewal, 1)
	go func() {
		r, err := s.Renew(s.Context(), leases)
		if err != nil {
			s.Error(err)
		}
		found <- r
	}()
	return func() store.Renewal { return <-found }
}

// Trap: a renewal has locked one lease and waits for a second, while a hand-off has locked the
// second and waits for the first.
// Proves: trap deadlock
func TestRenewalBesideLeasesLockedInAnotherOrder(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	a, b := s.pairOfLeases()
	const touch = "UPDATE locksidecar.leases SET repeated = true WHERE id = $1"
	exec(t, s.other, "BEGIN")
	exec(t, s.other, touch, b)
	done := s.renewing(a, b)
	awaitBlocked(t, s.url)
	exec(t, s.other, "SELECT FROM locksidecar.leases WHERE id = $1 FOR UPDATE NOWAIT", a) // the renewal does not keep it locked
	exec(t, s.other, touch, a)
	exec(t, s.other, "COMMIT")
	if r := done(); len(r.Renewed) != 2 || !s.renewed(a) || !s.renewed(b) {
		t.Errorf("renewed %v", r.Renewed)
	}
}

// A lease that is locked for a moment does not delay the others, and is renewed, too.
func TestARenewalWaitsForALeaseAfterTheOthers(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	a, b := s.pairOfLeases()
	exec(t, s.other, "BEGIN")
	exec(t, s.other, "SELECT FROM locksidecar.leases WHERE id = $1 FOR UPDATE", a)
	done := s.renewing(a, b)
	poll(t, "the renewal of the other lease", func() bool { return s.renewed(b) })
	if s.renewed(a) {
		t.Error("a locked lease was renewed: this does not test the rule")
	}
	exec(t, s.other, "COMMIT")
	if r := done(); len(r.Renewed) != 2 || !s.renewed(a) {
		t.Errorf("renewed %v", r.Renewed)
	}
}

// Trap: if renewals queued behind a burst of acquires, leases would die. Renewals have their own
// connection.
// Proves: trap late renewal
func TestARenewalWaitsForNoAcquires(t *testing.T) {
	t.Parallel()
	const burst = 8
	s := newScene(t)
	exec(t, s.other, "BEGIN")
	exec(t, s.other, `INSERT INTO locksidecar.locks (namespace, key, token)
		SELECT 'n', 'k' || n, locksidecar.token_at(clock_timestamp()) FROM generate_series(1, $1) n`, burst)
	answered := make(chan store.Answer, burst)
	for n := range burst {
		go func() { answered <- acquire(t, s, askFor(fmt.Sprintf("k%d", n+1), s.lease)) }()
	}
	poll(t, "all connections but one to wait", func() bool {
		return pgtest.Query[int64](t, s.url, "SELECT count(*) FROM pg_stat_activity WHERE "+blocked) >= postgres.SharedConns(s.Store)
	})
	if r, err := s.Renew(t.Context(), []store.LeaseID{s.lease}); err != nil || len(r.Renewed) != 1 {
		t.Errorf("renewed %v, %v", r.Renewed, err)
	}
	if _, err := s.HeldUnder(t.Context(), []string{"k"}); err != nil {
		t.Errorf("held under: %v", err)
	}
	if len(answered) > 0 {
		t.Error("the acquires did not wait long enough: this does not test the rule")
	}
	exec(t, s.other, "ROLLBACK")
	for range burst {
		want(t, <-answered, store.Granted)
	}
}

// A lease that is reaped while its renewal waits is not renewed. This is not an error.
func TestRenewalDuringAReap(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	a, b := s.pairOfLeases()
	exec(t, s.other, "BEGIN")
	exec(t, s.other, "DELETE FROM locksidecar.leases WHERE id = $1", a)
	done := s.renewing(a, b)
	awaitBlocked(t, s.url)
	exec(t, s.other, "COMMIT")
	if r := done(); !slices.Equal(r.Renewed, []store.LeaseID{b}) {
		t.Errorf("renewed %v, want %v", r.Renewed, b)
	}
}

// A renewal reports signals to holders without a further statement.
func TestRenewalReportsSignals(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	a, b := s.pairOfLeases()
	if _, err := s.Renew(t.Context(), []store.LeaseID{a}); err != nil { // makes the connection
		t.Fatal(err)
	}
	want(t, acquire(t, s, askFor("k", a)), store.Granted)
	s.signal(store.Signal{Kind: store.Stop, Key: "k"}, store.Holds)
	for _, c := range []struct {
		leases  []store.LeaseID
		signals bool
	}{
		{[]store.LeaseID{a, b}, true},
		{[]store.LeaseID{b}, false},
		{[]store.LeaseID{b, uuid.New()}, false},
	} {
		cluster.ResetStatements(t, s.url)
		r, err := s.Renew(t.Context(), c.leases)
		if err != nil || r.Signals != c.signals {
			t.Errorf("got %+v, %v; want signals: %t", r, err, c.signals)
		}
		if n := cluster.Statements(t, s.url, "%locksidecar%"); len(r.Renewed) == len(c.leases) && n != 1 {
			t.Errorf("%d statements", n)
		}
	}
}
