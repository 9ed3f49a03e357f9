package postgres_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/postgres"
)

const handedBy = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

// spy listens on an instance's channel, which every role that may connect can do.
type spy struct{ conn *pgx.Conn }

func newSpy(t *testing.T, url, instance string) spy {
	t.Helper()
	s := spy{connect(t, url)}
	exec(t, s.conn, "LISTEN "+postgres.ChannelOf("n", instance))
	return s
}

// next returns the next payload that is not a greeting.
func (s spy) next(t *testing.T) string {
	t.Helper()
	for {
		n, err := s.conn.WaitForNotification(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(n.Payload, "hello-") {
			return n.Payload
		}
	}
}

// Every role that may connect to the database may send notifications. Without the complete, random
// attempt id, a notification is at most a hint. It does no harm.
// Proves: promise 6, trap notifications, threat database role
func TestForgedNotifications(t *testing.T) {
	t.Parallel()
	url := cluster.NewDatabase(t)
	b := newListener(t, url, "b", postgres.ListenAuto)
	b.Listen(true)
	b.awaitHearing(t)
	conn := connect(t, url)
	id, derived := uuid.New(), uuid.NewSHA1(uuid.New(), []byte("k"))
	const times = ",7,1700000000000000,1700000060000000,1700000000000000,,"
	for _, payload := range []string{
		"", " ", "hello", "hello-" + uuid.NewString(), uuid.NewString(), strings.Repeat("x", 7999), "look:", "look:" + uuid.Nil.String()[:18],
		"look:" + uuid.NewString(), "look:zzzzzzzz-0000-0000",
		"granted:", "granted:" + id.String(), "granted:" + id.String()[:18] + times, "granted:" + id.String() + times[:len(times)-1],
		"granted:" + derived.String() + times, "granted:" + uuid.Nil.String() + times,
		"granted:" + id.String() + strings.Replace(times, "7", "x", 1), "granted:" + id.String() + strings.Replace(times, "7", "-7", 1),
		"granted:" + id.String() + strings.Replace(times, "17", "99999999999999", 1),
		"granted:" + id.String() + times + "x", "granted:" + id.String() + times + id.String(), "granted:" + id.String() + times + "+",
		"look:" + id.String()[:18] + " nonsense",
	} {
		exec(t, conn, "SELECT pg_notify($1, $2)", postgres.ChannelOf("n", "b"), payload)
	}
	b.await(t, "the only hint", func(n store.News) bool {
		if n.Answer.Outcome != 0 {
			t.Errorf("a notification became an answer: %+v", n)
		}
		return isHint(n, store.Ask{Attempt: store.Attempt{ID: id}})
	})
	if b.Traits().Polls {
		t.Error("the listener gets no news any more")
	}
}

// The attempt id proves that a notification is true. So it must stay secret while its waiter waits.
// Proves: promise 6, threat database role
func TestHintsKeepTheSecret(t *testing.T) {
	t.Parallel()
	url := cluster.NewDatabase(t)
	a, b := newListener(t, url, "a", postgres.ListenAuto), newListener(t, url, "b", postgres.ListenAuto)
	holder := askFor("k", a.lease)
	holder.TTL = time.Hour
	token := want(t, acquire(t, a, holder), store.Granted).Token
	waiter := askFor("k", b.lease)
	want(t, enqueue(t, b, waiter), store.Queued)
	s := newSpy(t, url, "b")
	if _, err := a.Amend(t.Context(), []store.Change{{Key: "k", Token: token, TTL: time.Minute}}); err != nil {
		t.Fatal(err)
	}
	secret := waiter.ID.String()[18:]
	if heard := s.next(t); !strings.HasPrefix(heard, "look:") || strings.Contains(heard, secret) {
		t.Errorf("a hint shows %q of %s to every listener", heard, waiter.ID)
	}
	held, next := askFor("l", a.lease), askFor("l", b.lease)
	token = want(t, acquire(t, a, held), store.Granted).Token
	want(t, enqueue(t, b, next), store.Queued)
	release(t, a, store.Claim{Key: "l", Token: token, Lease: a.lease})
	if heard := s.next(t); !strings.HasPrefix(heard, "granted:"+next.ID.String()) {
		t.Errorf("the notification of the grant to %s is %q", next.ID, heard)
	}
}

// all returns the notifications until now, after the instances have sent all news.
func (s spy) all(t *testing.T, senders ...*listener) (heard []string) {
	t.Helper()
	for _, l := range senders {
		poll(t, "an instance to send all news", func() bool { return postgres.Silent(l.Store) })
	}
	const end = "that is all"
	exec(t, s.conn, "SELECT pg_notify($1, $2)", postgres.ChannelOf("n", "b"), end)
	for {
		word := s.next(t)
		if word == end {
			return heard
		}
		heard = append(heard, word)
	}
}

// A client may claim any key with any token, as often as it likes. That must not cause many
// notifications. But a repeat of a release, whose answer was lost, sends its news again.
// Proves: trap notifications
func TestRepeatedReleasesDoNotFlood(t *testing.T) {
	t.Parallel()
	url := cluster.NewDatabase(t)
	a, b := newListener(t, url, "a", postgres.ListenAuto), newListener(t, url, "b", postgres.ListenAuto)
	b.Listen(true)
	b.awaitHearing(t)
	byTTL := askFor("ttl", uuid.Nil)
	byTTL.TTL = time.Hour
	kept := byTTL
	kept.Attempt, kept.MinHold = store.Attempt{Key: "kept", ID: uuid.New()}, time.Hour
	var claims []store.Claim
	for _, ask := range []store.Ask{askFor("session", a.lease), byTTL, kept} {
		token := want(t, acquire(t, a, ask), store.Granted).Token
		claims = append(claims, store.Claim{Key: ask.Key, Token: token, Lease: ask.Lease, Outcome: store.Success})
		want(t, enqueue(t, b, askFor(ask.Key, b.lease)), store.Queued)
	}
	s := newSpy(t, url, "b")
	for i, c := range claims {
		if v := release(t, a, c); v.Status != store.Holds {
			t.Fatalf("%s: %+v", c.Key, v)
		}
		if heard := s.all(t, a); len(heard) != 1 {
			t.Errorf("%s: the notification of the release is %q", c.Key, heard)
		}
		if i == 0 {
			release(t, a, c)
			if heard := s.all(t, a); len(heard) == 0 {
				t.Error("the repeat by a sidecar sent no news")
			}
		}
	}
	const times = 100
	began := time.Now()
	for range times {
		for _, c := range claims {
			release(t, a, store.Claim{Key: c.Key, Token: c.Token, Outcome: store.Success})
			release(t, a, store.Claim{Key: c.Key, Token: 1, Outcome: store.Success})
		}
	}
	heard := s.all(t, a)
	if most := 1 + int(time.Since(began)/time.Second); len(heard) == 0 || len(heard) > most {
		t.Errorf("%d repeats sent %d notifications, want 1 to %d: %q", 2*times*len(claims), len(heard), most, heard[:min(len(heard), 3)])
	}
}

// Repeated stops with new reasons do not cause many notifications either. The first is sent at
// once, and the last one with the holder's next renewal.
// Proves: trap notifications
func TestRepeatedStopsDoNotFlood(t *testing.T) {
	t.Parallel()
	url := cluster.NewDatabase(t)
	a, b := newListener(t, url, "a", postgres.ListenAuto), newListener(t, url, "b", postgres.ListenAuto)
	want(t, acquire(t, b, askFor("k", b.lease)), store.Granted)
	if err := b.Watch(t.Context(), []string{"k"}, b.lease); err != nil {
		t.Fatal(err)
	}
	s := newSpy(t, url, "b")
	ask := func(kind store.SignalKind, reason string) {
		t.Helper()
		statuses, err := a.Signal(t.Context(), []store.Signal{{Kind: kind, Key: "k", Reason: &reason}})
		if err != nil || statuses[0] != store.Holds {
			t.Fatal(statuses, err)
		}
	}
	ask(store.Stop, "first")
	if heard := s.all(t, a); len(heard) != 2 {
		t.Errorf("the notifications of a stop to its holder and its watchers are %q", heard)
	}
	ask(store.Break, "first")
	if heard := s.all(t, a); len(heard) != 1 {
		t.Errorf("the notification of a break is %q", heard)
	}
	const times = 100
	began := time.Now()
	for i := range times {
		ask(store.Stop, fmt.Sprint("reason ", i))
		ask(store.Break, fmt.Sprint("reason ", i))
	}
	heard := s.all(t, a)
	if most := 2 * (1 + int(time.Since(began)/time.Second)); len(heard) == 0 || len(heard) > most {
		t.Errorf("%d repeats sent %d notifications, want 1 to %d: %q", 2*times, len(heard), most, heard[:min(len(heard), 3)])
	}
	if r, err := b.Renew(t.Context(), []store.LeaseID{b.lease}); err != nil || !r.Signals {
		t.Errorf("the renewal does not report the signals: %+v, %v", r, err)
	}
	found, err := b.Signals(t.Context(), []store.LeaseID{b.lease})
	if err != nil || len(found) != 2 || *found[0].Reason != fmt.Sprint("reason ", times-1) || *found[1].Reason != *found[0].Reason {
		t.Errorf("got %+v, %v", found, err)
	}
}

// Notifications of a bind:ttl grant, and of a grant with a derived attempt id, are only hints,
// after which the waiter checks.
// Proves: promise 6, threat database role
func TestRareGrantsAreHints(t *testing.T) {
	t.Parallel()
	url := cluster.NewDatabase(t)
	a, b := newListener(t, url, "a", postgres.ListenAuto), newListener(t, url, "b", postgres.ListenAuto)
	b.Listen(true)
	b.awaitHearing(t)
	for name, change := range map[string]func(*store.Ask){
		"bind:ttl":   func(w *store.Ask) { w.TTL = time.Minute },
		"request_id": func(w *store.Ask) { w.ID = uuid.NewSHA1(uuid.New(), []byte(w.Key)) },
	} {
		t.Run(name, func(t *testing.T) {
			waiter := askFor(name, b.lease)
			change(&waiter)
			token := want(t, acquire(t, a, askFor(name, a.lease)), store.Granted).Token
			want(t, enqueue(t, b, waiter), store.Queued)
			release(t, a, store.Claim{Key: name, Token: token, Lease: a.lease})
			b.await(t, "a hint", func(n store.News) bool {
				if n.Answer.Outcome != 0 {
					t.Errorf("a complete notification: %+v", n)
				}
				return isHint(n, waiter)
			})
			want(t, check(t, b, waiter), store.Granted)
		})
	}
}

// Many keys that are released at once have a notification each.
func TestBatchNotifiesAllWaiters(t *testing.T) {
	t.Parallel()
	const many = 300
	url := cluster.NewDatabase(t)
	a, b := newListener(t, url, "a", postgres.ListenAuto), newListener(t, url, "b", postgres.ListenAuto)
	b.Listen(true)
	b.awaitHearing(t)
	var claims []store.Claim
	waiting := map[store.AttemptID]bool{}
	for i := range many {
		key := fmt.Sprint("k", i)
		token := want(t, acquire(t, a, askFor(key, a.lease)), store.Granted).Token
		claims = append(claims, store.Claim{Key: key, Token: token, Lease: a.lease, Traceparent: handedBy})
		waiter := askFor(key, b.lease)
		want(t, enqueue(t, b, waiter), store.Queued)
		waiting[waiter.ID] = true
	}
	if _, err := a.Release(t.Context(), claims); err != nil {
		t.Fatal(err)
	}
	for len(waiting) > 0 {
		b.await(t, "all grants", func(n store.News) bool {
			known := waiting[n.ID] && n.Answer.Outcome == store.Granted
			delete(waiting, n.ID)
			return known
		})
	}
}

// A hand-off may follow the release's first statements, because the waiter was renewing and looked
// expired. Its news is sent, too.
func TestLaterHandOffIsSent(t *testing.T) {
	t.Parallel()
	url := cluster.NewDatabase(t)
	a, b := newListener(t, url, "a", postgres.ListenAuto), newListener(t, url, "b", postgres.ListenAuto)
	b.Listen(true)
	b.awaitHearing(t)
	conn, renewal := connect(t, url), connect(t, url)
	token := want(t, acquire(t, a, askFor("k", a.lease)), store.Granted).Token
	waiter := askFor("k", b.lease)
	want(t, enqueue(t, b, waiter), store.Queued)
	exec(t, conn, "UPDATE locksidecar.leases SET expires_at = clock_timestamp() WHERE id = $1", b.lease)
	exec(t, renewal, "BEGIN")
	exec(t, renewal, "UPDATE locksidecar.leases SET expires_at = clock_timestamp() + ttl WHERE id = $1", b.lease)
	done := make(chan error, 1)
	go func() {
		_, err := a.Release(t.Context(), []store.Claim{{Key: "k", Token: token, Lease: a.lease}})
		done <- err
	}()
	awaitBlocked(t, url) // the reap is waiting for the renewal
	exec(t, renewal, "COMMIT")
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	want(t, check(t, b, waiter), store.Granted)
	b.await(t, "the grant", func(n store.News) bool { return isHint(n, waiter) })
}

// If sending a notification fails, even at its commit, the release is still done, and the waiter
// gets a hint.
func TestFailedNotificationBecomesAHint(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]string{
		"at once": `RAISE EXCEPTION 'on purpose'`,
		"late":    `INSERT INTO locksidecar.failing VALUES (0); RETURN 'x'`,
	} {
		t.Run(name, func(t *testing.T) {
			url := cluster.NewDatabase(t)
			a, b := newListener(t, url, "a", postgres.ListenAuto), newListener(t, url, "b", postgres.ListenAuto)
			b.Listen(true)
			b.awaitHearing(t)
			token := want(t, acquire(t, a, askFor("k", a.lease)), store.Granted).Token
			waiter := askFor("k", b.lease)
			want(t, enqueue(t, b, waiter), store.Queued)
			exec(t, connect(t, url), `
				CREATE TABLE locksidecar.failing (one integer);
				GRANT INSERT ON locksidecar.failing TO locksidecar;
				CREATE FUNCTION locksidecar.fails() RETURNS trigger LANGUAGE plpgsql AS
					$$ BEGIN RAISE EXCEPTION 'on purpose'; END $$;
				CREATE CONSTRAINT TRIGGER late AFTER INSERT ON locksidecar.failing DEFERRABLE INITIALLY DEFERRED
					FOR EACH ROW EXECUTE FUNCTION locksidecar.fails();
				CREATE OR REPLACE FUNCTION locksidecar.channel(ns text, its_instance text) RETURNS text
					LANGUAGE plpgsql VOLATILE AS $$ BEGIN `+fail+`; END $$`)
			if v := release(t, a, store.Claim{Key: "k", Token: token, Lease: a.lease}); v.Status != store.Holds {
				t.Fatalf("got %+v", v)
			}
			b.await(t, "a hint", func(n store.News) bool { return isHint(n, waiter) })
			want(t, check(t, b, waiter), store.Granted)
		})
	}
}
