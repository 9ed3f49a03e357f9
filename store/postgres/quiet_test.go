package postgres_test

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/internal/testing/logtest"
	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
	"github.com/locksidecar/locksidecar/internal/testing/pgtest/pgroles"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/postgres"
)

func startAs(t *testing.T, url, instance string, failover store.Failover) *postgres.Store {
	t.Helper()
	return startWith(t, postgres.Config{
		URL: url, AutoMigrate: true,
		Timeout: patience, Failover: failover,
	}, store.Identity{Namespace: "n", Instance: instance, Pod: instance})
}

// forgetful is a server and the data that its asynchronous standby has.
type forgetful struct {
	*pgtest.Cluster
	url     string
	standby func()
}

// fallBehind ends the replication, so the standby misses later commits.
func (f *forgetful) fallBehind(t *testing.T) {
	t.Helper()
	f.standby = f.Copy(t)
	if err := f.Again(); err != nil {
		t.Fatal(err)
	}
}

// failOver promotes the standby.
func (f *forgetful) failOver(t *testing.T) {
	t.Helper()
	f.standby()
	f.Promote(t)
}

// awaitAnswer waits until an instance is ready and has a connection to the current server.
// Connections from before a restart break when they are used.
func awaitAnswer(t *testing.T, s *postgres.Store) {
	t.Helper()
	awaitReady(t, s)
	poll(t, "the server to answer", func() bool {
		_, err := s.Get(t.Context(), []string{"none"})
		return err == nil
	})
}

func newForgetful(t *testing.T, options ...pgtest.Option) *forgetful {
	t.Helper()
	own := pgtest.Start(t, append(options, pgroles.Template())...)
	return &forgetful{Cluster: own, url: own.NewDatabase(t)}
}

// Trap: the holder of a grant that an asynchronous failover lost believes in the grant until its
// lease's deadline. The key is not granted before.
// Proves: A3
func TestAForgottenGrantIsNotGivenToOthers(t *testing.T) {
	t.Parallel()
	f := newForgetful(t)
	holder := startAs(t, f.url, "holder", "")
	lease := openLease(t, holder, time.Hour)
	f.fallBehind(t)
	awaitAnswer(t, holder)
	want(t, acquire(t, holder, askFor("k", lease)), store.Granted)
	holder.Stop()
	f.failOver(t)

	rival := startAs(t, f.url, "rival", "")
	mine := openLease(t, rival, time.Minute)
	a := want(t, acquire(t, rival, askFor("k", mine)), store.Quiet)
	if a.QuietFor < 50*time.Minute || a.QuietFor > time.Hour {
		t.Errorf("quiet time of %s, want the holder's TTL", a.QuietFor)
	}
	many, err := rival.Acquire(t.Context(), []store.Ask{askFor("k", mine), askFor("other", mine)})
	if err != nil || many[0].Outcome != store.Quiet || many[1].Outcome != store.Quiet {
		t.Errorf("got %+v, %v", many, err)
	}
	byTTL := store.Ask{Attempt: store.Attempt{Key: "k", ID: uuid.New()}, TTL: time.Minute}
	want(t, acquire(t, rival, byTTL), store.Quiet)
	byTTL.MinHold = time.Second
	want(t, acquire(t, rival, byTTL), store.Quiet)
}

// Trap: the failover also loses the lease, and other leases have other TTLs. The TTL was stored
// when it was first used.
// Proves: A3
func TestAForgottenLeaseIsWaitedFor(t *testing.T) {
	t.Parallel()
	f := newForgetful(t)
	holder := startAs(t, f.url, "holder", "")
	before := openLease(t, holder, time.Hour)
	if err := holder.Revoke(t.Context(), []store.LeaseID{before}); err != nil {
		t.Fatal(err)
	}
	f.fallBehind(t)
	awaitAnswer(t, holder)
	want(t, acquire(t, holder, askFor("k", openLease(t, holder, time.Hour))), store.Granted)
	holder.Stop()
	f.failOver(t)

	rival := startAs(t, f.url, "rival", "")
	if a := want(t, acquire(t, rival, askFor("k", openLease(t, rival, time.Minute))), store.Quiet); a.QuietFor < 50*time.Minute {
		t.Errorf("quiet time of %s", a.QuietFor)
	}
}

// The log reports the quiet time once, a metric shows the remaining time, and the store is ready.
func TestAQuietTimeIsLogged(t *testing.T) {
	t.Parallel()
	url, text := cluster.NewDatabase(t), &logtest.Log{}
	s, m := measured(t, postgres.Config{
		URL: url, Logger: slog.New(slog.NewTextHandler(text, nil)),
	})
	lease := openLease(t, s, time.Hour)
	shown := func() time.Duration { return m.state().Quiet }
	if left := shown(); left != 0 {
		t.Errorf("the metric shows %s before the quiet time", left)
	}
	exec(t, connect(t, url), "UPDATE locksidecar.meta SET server = 'another'")
	for range 3 {
		want(t, acquire(t, s, askFor("k", lease)), store.Quiet)
		awaitReady(t, s)
	}
	if n := strings.Count(text.String(), "quiet time: nothing is granted"); n != 1 {
		t.Errorf("it is logged %d times:\n%s", n, text)
	}
	if left := shown(); left < 50*time.Minute || left > time.Hour {
		t.Errorf("the metric shows %s", left)
	}
	exec(t, connect(t, url), "SELECT locksidecar.end_quiet()")
	want(t, acquire(t, s, askFor("k", lease)), store.Granted)
}

// Each sidecar of a mixed fleet decides for its own locks, independent of the sidecar that noticed
// the failover.
// Proves: A3
func TestAMixedFleet(t *testing.T) {
	t.Parallel()
	for holder, outcome := range map[store.Failover]store.Outcome{
		store.FailoverQuiet: store.Quiet, store.FailoverQuick: store.Granted,
	} {
		t.Run(string(holder), func(t *testing.T) {
			t.Parallel()
			other := store.FailoverQuick
			if holder == other {
				other = store.FailoverQuiet
			}
			url := cluster.NewDatabase(t)
			openLease(t, startAs(t, url, "holder", holder), time.Hour)
			exec(t, connect(t, url), "SELECT locksidecar.restored()")
			s := startAs(t, url, "other", other)
			want(t, acquire(t, s, askFor("k", openLease(t, s, time.Hour))), outcome)
		})
	}
}

// quietTime makes an instance in a quiet time of an hour. before runs in the history before.
func quietTime(t *testing.T, before func(*scene)) *scene {
	t.Helper()
	url := cluster.NewDatabase(t)
	s := startAs(t, url, "i", store.FailoverQuiet)
	sc := &scene{t, s, url, connect(t, url), connect(t, url), openLease(t, s, time.Hour), nil}
	if before != nil {
		before(sc)
	}
	exec(t, sc.conn, "SELECT locksidecar.restored()")
	return sc
}

// endQuiet ends the quiet time.
func (s *scene) endQuiet() {
	s.Helper()
	exec(s.T, s.conn, "SELECT locksidecar.end_quiet()")
}

// showsNoHolder checks that the only key, which is kept for its three waiters, is shown to nobody as held.
func (s *scene) showsNoHolder() {
	s.Helper()
	locks, err := s.Get(s.Context(), []string{"k"})
	if err != nil || locks[0].Held || locks[0].QueueLength != 3 {
		s.Errorf("read as %+v, %v", locks, err)
	}
	if listed, err := s.List(s.Context(), store.Query{Limit: 9}); err != nil || len(listed) != 0 {
		s.Errorf("listed as %+v, %v", listed, err)
	}
	all, err := s.Stats(s.Context())
	if err != nil || len(all.Types) != 1 || all.Types[0].Held+all.Types[0].Expired != 0 || all.Types[0].Waiting != 3 || len(all.Pods) != 0 {
		s.Errorf("counted as %+v, %v", all, err)
	}
	for _, kind := range []store.SignalKind{store.Stop, store.Break} {
		if statuses, err := s.Signal(s.Context(), []store.Signal{{Key: "k", Kind: kind}}); err != nil || statuses[0] != store.UnknownToken {
			s.Errorf("a signal %d: %v, %v", kind, statuses, err)
		}
	}
}

// claims returns the status of a claim.
func (s *scene) claims(claim store.Claim) store.ClaimStatus {
	s.Helper()
	verdicts, err := s.Amend(s.Context(), []store.Change{{Key: claim.Key, Token: claim.Token, Lease: claim.Lease}})
	if err != nil {
		s.Fatal(err)
	}
	return verdicts[0].Status
}

// In the quiet time, earlier grants stay valid.
func TestGrantsGoOnInTheQuietTime(t *testing.T) {
	t.Parallel()
	var held store.Ask
	var token int64
	s := quietTime(t, func(s *scene) {
		held = askFor("held", s.lease)
		token = want(t, acquire(t, s, held), store.Granted).Token
	})
	if r, err := s.Renew(t.Context(), []store.LeaseID{s.lease}); err != nil || len(r.Renewed) != 1 {
		t.Errorf("renewed %+v, %v", r, err)
	}
	claim := store.Claim{Key: "held", Token: token, Lease: s.lease}
	if status := s.claims(claim); status != store.Holds {
		t.Errorf("claim status %d", status)
	}
	want(t, acquire(t, s, held), store.Granted) // a repeat
	want(t, acquire(t, s, askFor("held", s.lease)), store.Held)
	if v := release(t, s, claim); v.Status != store.Holds {
		t.Errorf("the release: %+v", v)
	}
	want(t, acquire(t, s, askFor("held", s.lease)), store.Quiet)
	s.endQuiet()
	want(t, acquire(t, s, askFor("held", s.lease)), store.Granted)
}

// After the quiet time, waiters are served in their order: those from before, those that came while
// a holder had the key, and those that came while the key was free.
// Proves: A3
func TestWaitersOfAQuietTimeKeepTheirOrder(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(s *scene, held store.Ask, token int64) error{
		"release": func(s *scene, held store.Ask, token int64) error {
			_, err := s.Release(s.Context(), []store.Claim{{Key: held.Key, Token: token, Lease: held.Lease}})
			return err
		},
		"revoke": func(s *scene, held store.Ask, _ int64) error {
			return s.Revoke(s.Context(), []store.LeaseID{held.Lease})
		},
		"withdraw": func(s *scene, held store.Ask, _ int64) error { return withdraw(s.Context(), s, held.Attempt) },
		"expiry": func(s *scene, held store.Ask, _ int64) error {
			exec(s.T, s.conn, "UPDATE locksidecar.leases SET expires_at = clock_timestamp() WHERE id = $1", held.Lease)
			return nil
		},
		"free": nil,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var held store.Ask
			var token int64
			var waiters []store.Ask
			s := quietTime(t, func(s *scene) {
				held = askFor("k", openLease(t, s, time.Hour))
				waiters = []store.Ask{askFor("k", s.lease), askFor("k", s.lease), askFor("k", s.lease)}
				if end == nil {
					return
				}
				token = want(t, acquire(t, s, held), store.Granted).Token
				want(t, enqueue(t, s, waiters[0]), store.Queued)
			})
			for n, w := range waiters {
				if n == 1 && end != nil {
					if err := end(s, held, token); err != nil {
						t.Fatal(err)
					}
				}
				if a := want(t, enqueue(t, s, w), store.Queued); a.Position != n+1 {
					t.Errorf("position %d of waiter %d", a.Position, n)
				}
			}
			want(t, acquire(t, s, askFor("k", s.lease)), store.Quiet)
			share := askFor("k", s.lease)
			share.Shared = true
			want(t, acquire(t, s, share), store.Quiet)
			s.showsNoHolder()
			for _, w := range waiters {
				if a := want(t, check(t, s, w), store.Queued); a.Lock.Holder.ExpiresIn < 50*time.Minute {
					t.Errorf("the waiter checks again in %s", a.Lock.Holder.ExpiresIn)
				}
			}
			s.endQuiet()
			for n, w := range waiters {
				for _, later := range waiters[n+1:] {
					want(t, check(t, s, later), store.Queued)
				}
				a := want(t, check(t, s, w), store.Granted)
				if a.Token <= token {
					t.Errorf("token %d after %d", a.Token, token)
				}
				token = a.Token
				release(t, s, store.Claim{Key: "k", Token: token, Lease: s.lease})
			}
			want(t, acquire(t, s, askFor("k", s.lease)), store.Granted)
		})
	}
}

// A waiter that leaves in the quiet time does not block the key.
func TestAWaiterLeavesInTheQuietTime(t *testing.T) {
	t.Parallel()
	s := quietTime(t, nil)
	w := askFor("k", s.lease)
	want(t, enqueue(t, s, w), store.Queued)
	answers, err := s.Cancel(t.Context(), []store.Attempt{w.Attempt})
	want(t, answer(t, answers, err), store.Gone)
	s.endQuiet()
	want(t, acquire(t, s, askFor("k", s.lease)), store.Granted)
}

// A min_hold that ends in the quiet time does not end it for its key.
func TestAMinHoldEndsInTheQuietTime(t *testing.T) {
	t.Parallel()
	var w store.Ask
	s := quietTime(t, func(s *scene) {
		held := askFor("k", s.lease)
		held.MinHold = time.Hour
		w = askFor("k", s.lease)
		token := want(t, acquire(t, s, held), store.Granted).Token
		want(t, enqueue(t, s, w), store.Queued)
		release(t, s, store.Claim{Key: "k", Token: token, Lease: s.lease})
	})
	exec(t, s.conn, "UPDATE locksidecar.locks SET hold_until = clock_timestamp()")
	want(t, check(t, s, w), store.Queued)
	s.endQuiet()
	want(t, check(t, s, w), store.Granted)
}

// With FailoverQuiet, a new database and a restarted server still have no quiet time, because they
// lose no grants.
func TestWhenThereIsNoQuietTime(t *testing.T) {
	t.Parallel()
	t.Run("a new database", func(t *testing.T) {
		t.Parallel()
		url := cluster.NewDatabase(t)
		migrate(t, pgtest.Admin(url))
		exec(t, connect(t, url), "SELECT locksidecar.restored()")
		s := startAs(t, url, "i", store.FailoverQuiet)
		want(t, acquire(t, s, askFor("k", openLease(t, s, time.Hour))), store.Granted)
	})
	t.Run("a restart", func(t *testing.T) {
		t.Parallel()
		f := newForgetful(t)
		s := startAs(t, f.url, "i", store.FailoverQuiet)
		lease := openLease(t, s, time.Hour)
		f.Restart(t)
		poll(t, "the next grant", func() bool {
			answers, err := s.Acquire(t.Context(), []store.Ask{askFor(uuid.NewString(), lease)})
			return err == nil && answers[0].Outcome == store.Granted
		})
	})
}

// By default, a sidecar has a quiet time unless a synchronous standby is configured. Each renewal
// stores which.
func TestASynchronousStandbyForgetsNothing(t *testing.T) {
	t.Parallel()
	own := pgtest.Start(t, pgroles.Template())
	url := own.NewDatabase(t)
	notes := func(what string, lease store.LeaseID, want bool) {
		t.Helper()
		if quiet := pgtest.Query[bool](t, pgtest.Admin(url), "SELECT quiet FROM locksidecar.leases WHERE id = $1", lease); quiet != want {
			t.Errorf("%s: the lease is quiet: %t", what, quiet)
		}
	}
	renew := func(s engine, lease store.LeaseID) {
		t.Helper()
		if r, err := s.Renew(t.Context(), []store.LeaseID{lease}); err != nil || len(r.Renewed) != 1 {
			t.Fatalf("got %+v, %v", r, err)
		}
	}
	auto, quick, quiet := startAs(t, url, "a", ""), startAs(t, url, "b", store.FailoverQuick), startAs(t, url, "c", store.FailoverQuiet)
	lease := openLease(t, auto, time.Hour)
	notes("no standby", lease, true)
	renew(quick, lease)
	notes("quick", lease, false)
	renew(quiet, lease)
	notes("quiet", lease, true)
	renew(quick, lease)
	renew(auto, lease)
	notes("no standby", lease, true)

	const asked = "SELECT locksidecar.failover_forgets('')::text || locksidecar.failover_forgets('quiet')::text"
	leaveAlone(t, url)
	if got := pgtest.Query[string](t, pgtest.Admin(url), asked); got != "falsetrue" {
		t.Errorf("with a standby: %s", got)
	}
}

// A TTL that is no longer used does not lengthen quiet times for ever. In an idle database, the
// stored TTLs stay.
func TestNotesOfTTLsEnd(t *testing.T) {
	t.Parallel()
	url := cluster.NewDatabase(t)
	s, conn := startAs(t, url, "i", store.FailoverQuiet), connect(t, url)
	notes := func(want string) {
		t.Helper()
		const noted = "SELECT coalesce(string_agg(ttl::text || ' ' || (until > clock_timestamp() + interval '59 min')::text, ', ' ORDER BY ttl), '') FROM locksidecar.quiet_ttls"
		if got := pgtest.Query[string](t, pgtest.Admin(url), noted); got != want {
			t.Errorf("stored are %q, want %q", got, want)
		}
	}
	age := func(ttl, by string) {
		t.Helper()
		exec(t, conn, "UPDATE locksidecar.quiet_ttls SET until = until - $2::text::interval WHERE ttl = $1::text::interval", ttl, by)
	}
	ids := []store.NewLease{{ID: uuid.New(), TTL: 24 * time.Hour}, {ID: uuid.New(), TTL: time.Minute}, {ID: uuid.New(), TTL: time.Minute}}
	if err := s.OpenLeases(t.Context(), ids); err != nil {
		t.Fatal(err)
	}
	notes("00:01:00 true, 24:00:00 true")
	age("1 min", "20 min")
	openLease(t, s, time.Minute)
	notes("00:01:00 false, 24:00:00 true") // the stored TTL is young enough
	age("1 min", "20 min")
	age("24 h", "61 min")
	openLease(t, s, time.Minute)
	notes("00:01:00 true")
	age("1 min", "61 min")
	notes("00:01:00 false")
	openLease(t, s, time.Minute)
	notes("00:01:00 true")
	openLease(t, startAs(t, url, "quick", store.FailoverQuick), time.Hour)
	notes("00:01:00 true")
}
