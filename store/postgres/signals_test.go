package postgres_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/postgres"
)

// signal sends one signal and checks its status.
func (s *scene) signal(g store.Signal, want store.ClaimStatus) {
	s.Helper()
	statuses, err := s.Signal(s.Context(), []store.Signal{g})
	if err != nil {
		s.Fatal(err)
	}
	if statuses[0] != want {
		s.Fatalf("got %+v: status %d, want %d", g, statuses[0], want)
	}
}

// signalling sends one signal in the background.
func (s *scene) signalling(g store.Signal) (done func() store.ClaimStatus) {
	found := make(chan store.ClaimStatus, 1)
	go func() {
		statuses, err := s.Signal(s.Context(), []store.Signal{g})
		if err != nil {
			s.Error(err)
			statuses = make([]store.ClaimStatus, 1)
		}
		found <- statuses[0]
	}()
	return func() store.ClaimStatus { return <-found }
}

// count counts the rows of a table.
func (s *scene) count(table, where string, args ...any) int64 {
	s.Helper()
	return pgtest.Query[int64](s.T, s.url, fmt.Sprintf("SELECT count(*) FROM locksidecar.%s WHERE %s", table, where), args...)
}

// stopUnderWay starts a stop in the transaction of the other session.
func (s *scene) stopUnderWay(key string) {
	s.Helper()
	exec(s.T, s.other, "BEGIN")
	exec(s.T, s.other, "SELECT locksidecar.signal('n', 'infinity', ARRAY[$1], '{0}', '{stop}', '{why}')", key)
}

// A stop meets a hand-off. The stop is only for the holder that it names.
func TestAStopWaitsForAHandOffUnderWay(t *testing.T) {
	t.Parallel()
	for _, kind := range []store.SignalKind{store.Stop, store.Break} {
		for _, ttl := range []time.Duration{0, time.Hour} {
			t.Run(fmt.Sprint(kind, ttl), func(t *testing.T) {
				t.Parallel()
				s := newScene(t)
				first, next := askFor("k", s.lease), askFor("k", s.lease)
				first.TTL, next.TTL = ttl, ttl
				token := want(t, acquire(t, s, first), store.Granted).Token
				want(t, enqueue(t, s, next), store.Queued)
				exec(t, s.other, "BEGIN")
				exec(t, s.other, "SELECT locksidecar.hand_off('{n}', '{k}', ARRAY[lease_id], ARRAY[token], '{\"\"}') FROM locksidecar.locks")
				done := s.signalling(store.Signal{Kind: kind, Key: "k", Token: token})
				awaitBlocked(t, s.url)
				exec(t, s.other, "COMMIT")
				if got := done(); got != store.UnknownToken {
					t.Errorf("status %d", got)
				}
				want(t, check(t, s, next), store.Granted)
				if n := s.count("locks", "stopping IS NOT NULL") + s.count("signals", "true"); n != 0 {
					t.Error("the next holder gets the stop of the holder before")
				}
			})
		}
	}
}

// The other order: the stop is in flight when its holder releases.
func TestAReleaseWaitsForAStopUnderWay(t *testing.T) {
	t.Parallel()
	for _, contended := range []bool{false, true} {
		t.Run(fmt.Sprint("contended: ", contended), func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			token := want(t, acquire(t, s, askFor("k", s.lease)), store.Granted).Token
			next := askFor("k", s.lease)
			if contended {
				want(t, enqueue(t, s, next), store.Queued)
			}
			s.stopUnderWay("k")
			released := make(chan store.Verdict, 1)
			go func() { released <- release(t, s, store.Claim{Key: "k", Token: token, Lease: s.lease}) }()
			awaitBlocked(t, s.url)
			exec(t, s.other, "COMMIT")
			if v := <-released; v.Status != store.Holds {
				t.Fatalf("status %d", v.Status)
			}
			if !contended {
				want(t, acquire(t, s, next), store.Granted)
			}
			if n := s.count("locks", "stopping IS NOT NULL"); n != 0 {
				t.Error("the next holder is stopping")
			}
			if n := s.count("signals", "token <> $1", token); n != 0 {
				t.Error("a signal for the next holder")
			}
		})
	}
}

// Trap: a signal in flight during the reap of its lease would stay for ever.
func TestReapDropsASignalInFlight(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	dying := openLease(t, s, time.Hour)
	want(t, acquire(t, s, askFor("k", dying)), store.Granted)
	s.stopUnderWay("k")
	revoked := make(chan error, 1)
	go func() { revoked <- s.Revoke(t.Context(), []store.LeaseID{dying}) }()
	poll(t, "the reap to wait or end", func() bool { return len(revoked) > 0 || isBlocked(t, s.url) })
	exec(t, s.other, "COMMIT")
	if err := <-revoked; err != nil {
		t.Fatal(err)
	}
	if n := s.count("signals", "true"); n != 0 {
		t.Error("a dead lease has a signal")
	}
}

// The other order: the reap is in flight, so the stop finds no holder.
func TestSignalWaitsForAReapInFlight(t *testing.T) {
	t.Parallel()
	for _, kind := range []store.SignalKind{store.Stop, store.Break} {
		s := newScene(t)
		dying := openLease(t, s, time.Hour)
		want(t, acquire(t, s, askFor("k", dying)), store.Granted)
		exec(t, s.other, "BEGIN")
		exec(t, s.other, "DELETE FROM locksidecar.leases WHERE id = $1", dying)
		done := s.signalling(store.Signal{Kind: kind, Key: "k"})
		awaitBlocked(t, s.url)
		exec(t, s.other, "COMMIT")
		if got := done(); got != store.UnknownToken {
			t.Errorf("status %d", got)
		}
		if n := s.count("locks", "stopping IS NOT NULL") + s.count("signals", "true"); n != 0 {
			t.Error("a dead holder has a signal")
		}
	}
}

// A break of a bind:ttl lock hands it to the first living waiter. Expired waiters before are
// reaped. Without a living waiter, the key is free.
func TestABreakHandsOff(t *testing.T) {
	t.Parallel()
	for _, waits := range []bool{false, true} {
		t.Run(fmt.Sprint("with a waiter: ", waits), func(t *testing.T) {
			s := newScene(t)
			byTTL := askFor("k", s.lease)
			byTTL.TTL = time.Hour
			token := want(t, acquire(t, s, byTTL), store.Granted).Token
			dead, living := askFor("k", openLease(t, s, time.Hour)), askFor("k", s.lease)
			want(t, enqueue(t, s, dead), store.Queued)
			if waits {
				want(t, enqueue(t, s, living), store.Queued)
			}
			exec(t, s.conn, "UPDATE locksidecar.leases SET expires_at = clock_timestamp() WHERE id = $1", dead.Lease)
			s.signal(store.Signal{Kind: store.Break, Key: "k", Token: token + 1}, store.UnknownToken)
			s.signal(store.Signal{Kind: store.Break, Key: "k"}, store.Holds)
			if n := s.count("leases", "id <> $1", s.lease); n != 0 {
				t.Errorf("%d leases of the broken lock and of waiters still exist", n)
			}
			if waits {
				want(t, check(t, s, living), store.Granted)
				return
			}
			if v := release(t, s, store.Claim{Key: "k", Token: token}); v.Status != store.Expired {
				t.Errorf("a later claim has status %d, want expired", v.Status)
			}
			if n := s.count("locks", "lease_id IS NULL AND NOT contended"); n != 1 {
				t.Error("the key was not freed")
			}
		})
	}
}

// A lock whose hold is pending has no sidecar that would release it, so a break ends it like a
// bind:ttl lock.
func TestBreakOfAPendingHold(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	hold := openLease(t, s, time.Hour)
	ask := askFor("k", hold)
	ask.MinHold = time.Hour
	want(t, acquire(t, s, ask), store.Granted)
	s.signal(store.Signal{Kind: store.Stop, Key: "k"}, store.Holds)
	if err := s.Revoke(t.Context(), []store.LeaseID{hold}); err != nil {
		t.Fatal(err)
	}
	reason := "now"
	s.signal(store.Signal{Kind: store.Stop, Key: "k", Reason: &reason}, store.Holds)
	if n := s.count("signals", "reason IS NOT NULL"); n != 0 {
		t.Error("a signal without a holder")
	}
	s.signal(store.Signal{Kind: store.Break, Key: "k"}, store.Holds)
	want(t, acquire(t, s, askFor("k", s.lease)), store.Granted)
	if signals, err := s.Signals(t.Context(), []store.LeaseID{hold}); err != nil || len(signals) != 0 {
		t.Errorf("got %+v, %v", signals, err)
	}
}

// A locked row affects only the signal for its key.
func TestSignalGoesAroundALockedRow(t *testing.T) {
	t.Parallel()
	for _, kind := range []store.SignalKind{store.Stop, store.Break} {
		for _, ttl := range []time.Duration{0, time.Hour} {
			s := hasty(t)
			s.outcomes(s.Acquire, s.twenty(ttl), -1, store.Granted)
			signals := make([]store.Signal, 20)
			for i := range signals {
				signals[i] = store.Signal{Kind: kind, Key: fmt.Sprintf("k%02d", i)}
			}
			letGo := s.operator("locks", "key = 'k07'")
			statuses, err := s.Signal(t.Context(), signals)
			if err != nil {
				t.Fatal(err)
			}
			for i, got := range statuses {
				if want := map[bool]store.ClaimStatus{true: store.ClaimRowLocked, false: store.Holds}[i == 7]; got != want {
					t.Errorf("item %d: status %d, want %d", i, got, want)
				}
			}
			letGo()
			s.signal(signals[7], store.Holds)
		}
	}
}

// A signal that arrives late from a buffer would be for another holder.
func TestASignalThatComesTooLateDoesNothing(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	byTTL := askFor("ttl", s.lease)
	byTTL.TTL = time.Hour
	want(t, acquire(t, s, byTTL), store.Granted)
	want(t, acquire(t, s, askFor("session", s.lease)), store.Granted)
	for _, g := range []store.Signal{
		{Kind: store.Stop, Key: "ttl"},
		{Kind: store.Break, Key: "ttl"},
		{Kind: store.Stop, Key: "session"},
		{Kind: store.Break, Key: "session"},
	} {
		// This store has not read the database's clock after a failure.
		s.Store = startStore(t, s.url, store.Identity{Namespace: "n", Instance: "i", Pod: "p"})
		postgres.SetClock(s.Store, -time.Hour)
		if _, err := s.Signal(t.Context(), []store.Signal{g}); !store.Unavailable(err) || store.OutcomeUnknown(err) {
			t.Errorf("got %+v: %v, want a failure that did nothing", g, err)
		}
		poll(t, "the clock to be right again", func() bool {
			return s.OpenLeases(t.Context(), []store.NewLease{{ID: uuid.New(), TTL: time.Minute}}) == nil
		})
	}
	if n := s.count("locks", "stopping IS NOT NULL") + s.count("signals", "true"); n != 0 {
		t.Error("a holder has a signal")
	}
	if n := s.count("leases", "NOT renewed"); n != 1 {
		t.Error("the lock was broken")
	}
}

// Repeated signals leave at most one of each kind that is not acknowledged, the last one.
func TestSignalsDoNotPileUp(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	want(t, acquire(t, s, askFor("k", s.lease)), store.Granted)
	for i := range 20 {
		reason := fmt.Sprint(i)
		for _, kind := range []store.SignalKind{store.Stop, store.Break} {
			s.signal(store.Signal{Kind: kind, Key: "k", Reason: &reason}, store.Holds)
		}
	}
	signals, err := s.Signals(t.Context(), []store.LeaseID{s.lease})
	if err != nil || len(signals) != 2 {
		t.Fatalf("got %+v, %v", signals, err)
	}
	for _, g := range signals {
		if *g.Reason != "19" {
			t.Errorf("%+v is not the last signal", g)
		}
	}

	// After the acknowledgement, a stop with the same reason has no effect.
	if err := s.Acknowledge(t.Context(), []store.SignalID{signals[0].ID, signals[1].ID}); err != nil {
		t.Fatal(err)
	}
	s.signal(store.Signal{Kind: store.Stop, Key: "k", Reason: signals[0].Reason}, store.Holds)
	if signals, err = s.Signals(t.Context(), []store.LeaseID{s.lease}); err != nil || len(signals) != 0 {
		t.Errorf("got %+v, %v; want none", signals, err)
	}
}

// A signal that is replaced during its acknowledgement is delivered again.
func TestSignalIsReplacedDuringItsAcknowledgement(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	want(t, acquire(t, s, askFor("k", s.lease)), store.Granted)
	s.signal(store.Signal{Kind: store.Stop, Key: "k"}, store.Holds)
	signals, err := s.Signals(t.Context(), []store.LeaseID{s.lease})
	if err != nil || len(signals) != 1 {
		t.Fatalf("got %+v, %v", signals, err)
	}
	s.stopUnderWay("k") // with a reason
	if err := s.Acknowledge(t.Context(), []store.SignalID{signals[0].ID}); err != nil {
		t.Fatal(err)
	}
	exec(t, s.other, "COMMIT")
	signals, err = s.Signals(t.Context(), []store.LeaseID{s.lease})
	if err != nil || len(signals) != 1 || signals[0].Reason == nil || *signals[0].Reason != "why" {
		t.Errorf("got %+v, %v; want the new signal", signals, err)
	}
}

// A signal ends with its lease, for every statement that ends the lease. A signal whose row is
// locked at that moment stays until the sweep.
func TestSignalsEndWithTheirLease(t *testing.T) {
	t.Parallel()
	reason := "why"
	for _, ends := range []struct {
		name  string
		swept bool
		end   func(s *scene, lease uuid.UUID)
	}{
		{"revoked", false, func(s *scene, lease uuid.UUID) {
			if err := s.Revoke(s.Context(), []store.LeaseID{lease}); err != nil {
				s.Fatal(err)
			}
		}},
		{"revoked while the signals are being acknowledged in vain", true, func(s *scene, lease uuid.UUID) {
			exec(s.T, s.other, "BEGIN")
			exec(s.T, s.other, "DELETE FROM locksidecar.signals")
			revoked := make(chan error, 1)
			go func() { revoked <- s.Revoke(s.Context(), []store.LeaseID{lease}) }()
			poll(s.T, "the revocation to wait or end", func() bool { return len(revoked) > 0 || isBlocked(s.T, s.url) })
			exec(s.T, s.other, "ROLLBACK")
			if err := <-revoked; err != nil {
				s.Fatal(err)
			}
		}},
	} {
		t.Run(ends.name, func(t *testing.T) {
			s := newScene(t)
			lease := openLease(t, s, time.Hour)
			want(t, acquire(t, s, askFor("k", lease)), store.Granted)
			s.signal(store.Signal{Kind: store.Stop, Key: "k", Reason: &reason}, store.Holds)
			if n := s.count("signals", "true"); n != 1 {
				t.Fatalf("there are %d signals, want 1", n)
			}
			ends.end(s, lease)
			if n := s.count("leases", "id = $1", lease); n != 0 {
				t.Fatal("the lease did not end")
			}
			if ends.swept {
				if err := s.Sweep(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if n := s.count("signals", "true"); n != 0 {
				t.Errorf("%d signals outlive their lease", n)
			}
		})
	}
}

// The holder's instance is notified of signals: its own signals at once, those of others by a
// notification.
func TestHolderIsNotifiedOfSignals(t *testing.T) {
	t.Parallel()
	url := cluster.NewDatabase(t)
	a, b := newListener(t, url, "a", postgres.ListenAuto), newListener(t, url, "b", postgres.ListenAuto)
	want(t, acquire(t, a, askFor("k", a.lease)), store.Granted)
	want(t, acquire(t, a, askFor("l", a.lease)), store.Granted)
	a.Listen(true)
	a.awaitHearing(t)
	send := func(from *listener, signals ...store.Signal) {
		t.Helper()
		if _, err := from.Signal(t.Context(), signals); err != nil {
			t.Fatal(err)
		}
	}
	isSignals := func(n store.News) bool { return n.Signals }
	send(b, store.Signal{Kind: store.Stop, Key: "k"}, store.Signal{Kind: store.Stop, Key: "l"})
	a.await(t, "news of signals", isSignals)
	send(b, store.Signal{Kind: store.Stop, Key: "k"})
	for len(a.news) > 0 {
		<-a.news
	}
	send(a, store.Signal{Kind: store.Break, Key: "k"})
	select {
	case n := <-a.news:
		if !isSignals(n) {
			t.Errorf("got %+v, want news of signals", n)
		}
	default:
		t.Error("an instance does not notify itself at once")
	}
}

// A stop whose answer and hint were lost is repeated. It sends a hint until the holder has
// acknowledged the signal.
func TestARepeatedStopHintsAgain(t *testing.T) {
	t.Parallel()
	url := cluster.NewDatabase(t)
	a, b := newListener(t, url, "a", postgres.ListenAuto), newListener(t, url, "b", postgres.ListenAuto)
	want(t, acquire(t, a, askFor("k", a.lease)), store.Granted)
	a.Listen(true)
	a.awaitHearing(t)
	exec(t, connect(t, url), "SELECT locksidecar.signal('n', 'infinity', '{k}', '{0}', '{stop}', '{NULL}')")
	stop := []store.Signal{{Kind: store.Stop, Key: "k"}}
	if _, err := b.Signal(t.Context(), stop); err != nil {
		t.Fatal(err)
	}
	a.await(t, "news of signals", func(n store.News) bool { return n.Signals })
	signals, err := a.Signals(t.Context(), []store.LeaseID{a.lease})
	if err != nil || len(signals) != 1 {
		t.Fatalf("got %+v, %v", signals, err)
	}
	if err := a.Acknowledge(t.Context(), []store.SignalID{signals[0].ID}); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Signal(t.Context(), stop); err != nil { // an instance notifies itself at once
		t.Fatal(err)
	}
	for len(a.news) > 0 {
		if n := <-a.news; n.Signals {
			t.Errorf("got %+v after the acknowledgement", n)
		}
	}
}

// TestSweepForgetsWhatDeadLeasesLeft checks rows that a reap missed.
func TestSweepForgetsWhatDeadLeasesLeft(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	want(t, acquire(t, s, askFor("k", s.lease)), store.Granted)
	s.signal(store.Signal{Kind: store.Stop, Key: "k"}, store.Holds)
	if err := s.Watch(t.Context(), []string{"k", "both"}, s.lease); err != nil {
		t.Fatal(err)
	}
	exec(t, s.conn, "INSERT INTO locksidecar.watchers SELECT namespace, key, gen_random_uuid() FROM locksidecar.watchers WHERE key = 'both'")
	exec(t, s.conn, `INSERT INTO locksidecar.locks (namespace, key, token, watched, freed_at)
		SELECT ns, 'left', 1, true, clock_timestamp() - interval '1 year' FROM unnest('{n,another}'::text[]) ns`)
	exec(t, s.conn, "INSERT INTO locksidecar.watchers VALUES ('n', 'left', gen_random_uuid())")
	for range 3 { // removes the watcher, the mark and the key
		if err := s.Sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if signals, watchers := s.count("signals", "true"), s.count("watchers", "true"); signals != 1 || watchers != 2 {
		t.Errorf("there are %d signals and %d watchers, want 1 and 2: those of the living lease", signals, watchers)
	}
	if n := s.count("locks", "key = 'left'"); n != 0 {
		t.Error("a key without watchers is never forgotten")
	}
	if n := s.count("locks", "watched"); n != 2 {
		t.Errorf("%d keys are watched, want 2", n)
	}
}
