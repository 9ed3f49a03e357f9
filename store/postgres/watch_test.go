package postgres_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/locksidecar/locksidecar/internal/testing/pgproxy"
	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/postgres"
)

const (
	announcements = "/* locksidecar:notify_events */%"
	listening     = "/* locksidecar:listen */%"
)

// watch watches a key under an instance's own lease.
func (l *listener) watch(t *testing.T, keys ...string) {
	t.Helper()
	if err := l.Watch(t.Context(), keys, l.lease); err != nil {
		t.Fatal(err)
	}
}

// hears waits for an event of a key.
func (l *listener) hears(t *testing.T, key string, kind store.EventKind, token int64) (found store.Event) {
	t.Helper()
	l.await(t, fmt.Sprintf("event %d of %s", kind, key), func(n store.News) bool {
		if n.Event == nil || n.Event.Key != key || n.Event.Kind != kind || n.Event.Token != token {
			return false
		}
		found = *n.Event
		return true
	})
	return found
}

// stop asks the holder of a key to stop with a new reason. This is the simplest way to cause an
// event.
func (l *listener) stop(t *testing.T, key string) (reason string) {
	t.Helper()
	reason = uuid.NewString()
	statuses, err := l.Signal(t.Context(), []store.Signal{{Kind: store.Stop, Key: key, Reason: &reason}})
	if err != nil || statuses[0] != store.Holds {
		t.Fatalf("%v, %v", statuses, err)
	}
	return reason
}

// quiet waits until all news is sent.
func quiet(t *testing.T, s *postgres.Store) {
	t.Helper()
	poll(t, "all news to be sent", func() bool { return postgres.Silent(s) })
}

func acquired(token int64, key string) store.Event {
	return store.Event{Kind: store.EventAcquired, Key: key, Token: token}
}

// Events after the return of Watch arrive, also right after LISTEN was switched on, or off and on
// again.
func TestEventRightAfterWatchArrives(t *testing.T) {
	t.Parallel()
	url := cluster.NewDatabase(t)
	a, b := newListener(t, url, "a", postgres.ListenAuto), newListener(t, url, "b", postgres.ListenAuto)
	for n := range 20 {
		key := fmt.Sprint("k", n)
		token := want(t, acquire(t, a, askFor(key, a.lease)), store.Granted).Token
		b.Listen(false)
		b.Listen(true)
		b.watch(t, key)
		reason := a.stop(t, key)
		e := b.hears(t, key, store.EventStopping, token)
		if e.Stopping == nil || *e.Stopping.Reason != reason || e.Stopping.At.IsZero() {
			t.Fatalf("got %+v", e)
		}
	}
}

// Watch returns only after LISTEN is committed.
func TestWatchWaitsForTheListener(t *testing.T) {
	t.Parallel()
	url := cluster.NewDatabase(t)
	proxy := pgproxy.Start(t, url)
	s := newListener(t, proxy.URL(), "b", postgres.ListenAuto)
	reached, goOn := make(chan struct{}), make(chan struct{})
	proxy.On("listen", pgproxy.BeforeSend, func() {
		close(reached)
		<-goOn
	})
	s.Listen(true)
	<-reached
	done := make(chan error, 1)
	go func() { done <- s.Watch(t.Context(), []string{"k"}, s.lease) }()
	select {
	case err := <-done:
		t.Errorf("a key is watched before LISTEN has reached the server: %v", err)
	case <-time.After(200 * time.Millisecond): // less than the longest wait of a Watch
	}
	close(goOn)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// Events of unwatched keys need no statement and no notification. Each event of a watched key is
// sent once to each other watching instance.
// Proves: trap notifications
func TestOnlyEventsOfWatchedKeysAreSent(t *testing.T) {
	t.Parallel()
	url := cluster.NewDatabase(t)
	a := newListener(t, url, "a", postgres.ListenAuto)
	raw := connect(t, url)
	for _, instance := range []string{"a", "b"} {
		exec(t, raw, "LISTEN "+postgres.ChannelOf("n", instance))
	}
	for _, key := range []string{"watched", "other"} {
		want(t, acquire(t, a, askFor(key, a.lease)), store.Granted)
	}
	// Two leases of another instance watch, and the instance's own lease.
	b := startStore(t, url, store.Identity{Namespace: "n", Instance: "b", Pod: "p"})
	for range 2 {
		lease := openLease(t, b, time.Hour)
		exec(t, connect(t, url), "SELECT locksidecar.watch('n', 'infinity', '{watched}', $1, 'nobody')", lease)
	}
	a.watch(t, "watched")

	cluster.ResetStatements(t, url)
	a.stop(t, "other")
	quiet(t, a.Store)
	if n := cluster.Statements(t, url, "%locksidecar%"); n != 1 {
		t.Errorf("%d statements for a stop of a key without watchers", n)
	}
	a.stop(t, "watched")
	quiet(t, a.Store)
	if n := cluster.Statements(t, url, announcements); n != 1 {
		t.Errorf("%d statements for one event", n)
	}
	a.await(t, "the instance's own event", func(n store.News) bool { return n.Event != nil })
	exec(t, raw, "SELECT pg_notify($1, 'end')", postgres.ChannelOf("n", "b"))
	var heard []string
	for {
		n, err := raw.WaitForNotification(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if n.Payload == "end" {
			break
		}
		heard = append(heard, n.Channel+" "+n.Payload)
	}
	if len(heard) != 1 || !strings.HasPrefix(heard[0], postgres.ChannelOf("n", "b")+" event:") {
		t.Errorf("notifications %q, want one event for the other instance", heard)
	}
}

// Events of a key arrive in the order in which they happened in the sidecar, however many there
// are.
func TestEventsKeepTheirOrder(t *testing.T) {
	t.Parallel()
	url := cluster.NewDatabase(t)
	a, b := newListener(t, url, "a", postgres.ListenAuto), newListener(t, url, "b", postgres.ListenAuto)
	b.Listen(true)
	b.watch(t, "k")
	const events = 1000
	for n := range events {
		postgres.Tell(t, a.Store, "n", acquired(int64(n+1), "k"))
	}
	next := int64(1)
	for next <= events {
		b.await(t, "the next event", func(n store.News) bool { return n.Event != nil && n.Event.Token == next })
		next++
	}
}

// The longest key and the longest result arrive complete.
func TestALongEventArrives(t *testing.T) {
	t.Parallel()
	url := cluster.NewDatabase(t)
	a, b := newListener(t, url, "a", postgres.ListenAuto), newListener(t, url, "b", postgres.ListenAuto)
	key := strings.Repeat(`"`, 511) + "\u0001"
	result := []byte(`"` + strings.Repeat(`\"`, 2047) + `"`)
	b.Listen(true)
	b.watch(t, key)
	postgres.Tell(t, a.Store, "n", store.Event{
		Kind: store.EventReleased, Key: key, Token: 1 << 52, Outcome: store.Failure, Result: result,
	})
	e := b.hears(t, key, store.EventReleased, 1<<52)
	if !bytes.Equal(e.Result, result) || e.Outcome != store.Failure {
		t.Errorf("got %+v", e)
	}
}

// An instance's own events need no LISTEN. Events of another namespace are not its own, even with
// the same names of keys and instances.
func TestOwnEvents(t *testing.T) {
	t.Parallel()
	url := cluster.NewDatabase(t)
	a := newListener(t, url, "a", postgres.ListenNever)
	a.watch(t, "k")
	postgres.Tell(t, a.Store, "another", acquired(1, "k"))
	postgres.Tell(t, a.Store, "n", acquired(2, "unwatched"))
	postgres.Tell(t, a.Store, "n", acquired(3, "k"))
	a.await(t, "the instance's own event", func(n store.News) bool {
		if n.Event != nil && n.Event.Token != 3 {
			t.Errorf("got %+v", n.Event)
		}
		return n.Event != nil && n.Event.Token == 3
	})
	if err := a.Unwatch(t.Context(), []string{"k"}); err != nil {
		t.Fatal(err)
	}
	postgres.Tell(t, a.Store, "n", acquired(4, "k"))
	for len(a.news) > 0 {
		if n := <-a.news; n.Event != nil {
			t.Errorf("got %+v", n.Event)
		}
	}
}

// A reap by an instance of another namespace notifies the watchers of the key's namespace.
func TestEventsOfAnotherNamespace(t *testing.T) {
	t.Parallel()
	url := cluster.NewDatabase(t)
	a := newListener(t, url, "a", postgres.ListenAuto)
	b := startStore(t, url, store.Identity{Namespace: "another", Instance: "a", Pod: "p"})
	raw := connect(t, url)
	exec(t, raw, "LISTEN "+postgres.ChannelOf("another", "a"))
	if err := b.Watch(t.Context(), []string{"k"}, openLease(t, b, time.Hour)); err != nil {
		t.Fatal(err)
	}
	postgres.Tell(t, a.Store, "another", acquired(7, "k"))
	n, err := raw.WaitForNotification(t.Context())
	if err != nil || n.Payload != postgres.WordOf(acquired(7, "k")) {
		t.Errorf("got %+v, %v", n, err)
	}
}

// After the end of its watchers, a key's mark costs one further statement.
func TestTheMarkOfAKeyThatNobodyWatchesIsTakenOff(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	want(t, acquire(t, s, askFor("k", s.lease)), store.Granted)
	gone := openLease(t, s, time.Hour)
	if err := s.Watch(t.Context(), []string{"k"}, gone); err != nil {
		t.Fatal(err)
	}
	exec(t, s.conn, "DELETE FROM locksidecar.leases WHERE id = $1", gone) // as after an interrupted reap
	s.signal(store.Signal{Kind: store.Stop, Key: "k"}, store.Holds)
	poll(t, "the removal of the mark", func() bool { return s.count("locks", "watched") == 0 })
	if n := s.count("watchers", "true"); n != 0 {
		t.Errorf("%d watchers are left", n)
	}
	quiet(t, s.Store)
	cluster.ResetStatements(t, s.url)
	reason := "again"
	s.signal(store.Signal{Kind: store.Stop, Key: "k", Reason: &reason}, store.Holds)
	quiet(t, s.Store)
	if n := cluster.Statements(t, s.url, "%locksidecar%"); n != 1 {
		t.Errorf("%d statements", n)
	}
}

// The mark ends with the last watcher. A watcher that comes at this moment keeps the mark.
func TestAnUnwatchAndAWatchUnderWay(t *testing.T) {
	t.Parallel()
	for _, comes := range []bool{true, false} {
		s := newScene(t)
		b := startStore(t, s.url, store.Identity{Namespace: "n", Instance: "b", Pod: "p"})
		theirs := openLease(t, b, time.Hour)
		if err := s.Watch(t.Context(), []string{"k"}, s.lease); err != nil {
			t.Fatal(err)
		}
		if !comes { // this watcher leaves at the same time
			if err := b.Watch(t.Context(), []string{"k"}, theirs); err != nil {
				t.Fatal(err)
			}
		}
		exec(t, s.other, "BEGIN")
		if comes {
			exec(t, s.other, "SELECT locksidecar.watch('n', 'infinity', '{k}', $1, 'b')", theirs)
		} else {
			exec(t, s.other, "SELECT locksidecar.unwatch('infinity', '{n}', '{k}', 'b')")
		}
		done := make(chan error, 1)
		go func() { done <- s.Unwatch(t.Context(), []string{"k"}) }()
		poll(t, "the unwatch to wait or end", func() bool { return len(done) > 0 || isBlocked(t, s.url) })
		exec(t, s.other, "COMMIT")
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		watched := s.count("locks", "watched") == 1
		if watchers := s.count("watchers", "true"); watched != comes || (watchers == 1) != comes {
			t.Errorf("a watcher comes: %t; marked: %t, with %d watchers", comes, watched, watchers)
		}
	}
}

// A watch in flight ends with the reap of its lease. A watch after the reap is refused.
func TestWatchDuringAReap(t *testing.T) {
	t.Parallel()
	t.Run("the watch first", func(t *testing.T) {
		s := newScene(t)
		dying := openLease(t, s, time.Hour)
		exec(t, s.other, "BEGIN")
		exec(t, s.other, "SELECT locksidecar.watch('n', 'infinity', '{k}', $1, 'i')", dying)
		revoked := make(chan error, 1)
		go func() { revoked <- s.Revoke(t.Context(), []store.LeaseID{dying}) }()
		poll(t, "the reap to wait or end", func() bool { return len(revoked) > 0 || isBlocked(t, s.url) })
		exec(t, s.other, "COMMIT")
		if err := <-revoked; err != nil {
			t.Fatal(err)
		}
		if n := s.count("watchers", "true"); n != 0 {
			t.Error("a dead lease has a watch")
		}
	})
	t.Run("the reap first", func(t *testing.T) {
		s := newScene(t)
		dying := openLease(t, s, time.Hour)
		exec(t, s.other, "BEGIN")
		exec(t, s.other, "DELETE FROM locksidecar.leases WHERE id = $1", dying)
		watched := make(chan error, 1)
		go func() { watched <- s.Watch(t.Context(), []string{"k"}, dying) }()
		awaitBlocked(t, s.url)
		exec(t, s.other, "COMMIT")
		if err := <-watched; !store.Unavailable(err) {
			t.Errorf("%v, want an error, because a dead lease gets no events", err)
		}
		if n := s.count("watchers", "true") + s.count("locks", "watched"); n != 0 {
			t.Error("a dead lease has a watch")
		}
	})
}

// The watches of a lease that is not renewed end with it, after a reap by any instance.
func TestAWatchEndsWithALeaseThatIsNotRenewed(t *testing.T) {
	t.Parallel()
	url := cluster.NewDatabase(t)
	a := newListener(t, url, "a", postgres.ListenNever)
	lost := openLease(t, a, time.Hour)
	if err := a.Watch(t.Context(), []string{"k"}, lost); err != nil {
		t.Fatal(err)
	}
	a.watch(t, "kept")
	exec(t, connect(t, url), "DELETE FROM locksidecar.leases WHERE id = $1", lost)
	if r, err := a.Renew(t.Context(), []store.LeaseID{lost, a.lease}); err != nil || len(r.Renewed) != 1 {
		t.Fatalf("got %+v, %v", r, err)
	}
	postgres.Tell(t, a.Store, "n", acquired(1, "k"))
	postgres.Tell(t, a.Store, "n", acquired(2, "kept"))
	a.await(t, "the event of the key that is still watched", func(n store.News) bool {
		if n.Event != nil && n.Event.Key == "k" {
			t.Errorf("got %+v", n.Event)
		}
		return n.Event != nil && n.Event.Key == "kept"
	})
}

// A watch of a key with a locked row fails. The other keys are watched, so the caller must end that.
func TestWatchGoesAroundALockedRow(t *testing.T) {
	t.Parallel()
	s := hasty(t)
	keys := []string{"a", "b", "c"}
	for _, key := range keys {
		want(t, acquire(t, s, askFor(key, s.lease)), store.Granted)
	}
	letGo := s.operator("locks", "key = 'b'")
	if err := s.Watch(t.Context(), keys, s.lease); !store.Unavailable(err) || !store.OutcomeUnknown(err) {
		t.Errorf("%v, want an error of unknown outcome", err)
	}
	if n := s.count("watchers", "true"); n != 2 {
		t.Errorf("%d keys are watched, want 2", n)
	}
	if err := s.Unwatch(t.Context(), keys); !store.Unavailable(err) {
		t.Errorf("%v, want an error", err)
	}
	if n := s.count("watchers", "true"); n != 0 {
		t.Errorf("%d keys are watched, want 0", n)
	}
	letGo()
	if err := s.Watch(t.Context(), keys, s.lease); err != nil {
		t.Error(err)
	}
}

// Events are lost with the listening connection. After a reconnect, everything is checked.
func TestEventsAfterAKilledListener(t *testing.T) {
	t.Parallel()
	url := cluster.NewDatabase(t)
	a, b := newListener(t, url, "a", postgres.ListenAuto), newListener(t, url, "b", postgres.ListenAuto)
	keys := []string{"x", "y", "z"}
	var tokens []int64
	for _, key := range keys {
		tokens = append(tokens, want(t, acquire(t, a, askFor(key, a.lease)), store.Granted).Token)
	}
	b.Listen(true)
	b.watch(t, keys...)
	b.awaitHearing(t)
	b.await(t, "the first check of everything", isEveryWait)
	for i, key := range keys {
		pgtest.Terminate(t, url, listening)
		b.await(t, "news that it gets no notifications", isEveryWait)
		b.await(t, "news that it listens again and may have missed notifications", isEveryWait)
		a.stop(t, key)
		b.hears(t, key, store.EventStopping, tokens[i])
	}
}

// Every role that may connect to the database may send events. Events of unwatched keys and invalid
// texts are ignored, and do no harm.
func TestForgedEvents(t *testing.T) {
	t.Parallel()
	url := cluster.NewDatabase(t)
	b := newListener(t, url, "b", postgres.ListenAuto)
	b.Listen(true)
	b.watch(t, "k")
	b.awaitHearing(t)
	raw := connect(t, url)
	channel := postgres.ChannelOf("n", "b")
	good := postgres.WordOf(acquired(5, "k"))
	forged := []string{
		"event:", "event:{}", "event:null", "event:[]", "event: " + good, good[:len(good)-1], strings.ToUpper(good),
		strings.Replace(good, "acquired", "eaten", 1), strings.Replace(good, `"token":5`, `"token":-5`, 1),
		postgres.WordOf(acquired(6, "other")), "event:" + strings.Repeat("[", 7000), "signals-" + good,
	}
	for _, payload := range append(forged, strings.Join(forged, " ")[:7000], "signals x "+postgres.WordOf(acquired(7, "k"))) {
		exec(t, raw, "SELECT pg_notify($1, $2)", channel, payload)
	}
	var signals int
	b.await(t, "the only valid event", func(n store.News) bool {
		if n.Signals {
			signals++
		}
		// "event: " is two words, of which the second is a valid event, which may arrive.
		if n.Event != nil && (n.Event.Key != "k" || n.Event.Kind != store.EventAcquired || n.Event.Token != 5 && n.Event.Token != 7) {
			t.Errorf("got %+v", n.Event)
		}
		return n.Event != nil && n.Event.Token == 7
	})
	if signals != 1 {
		t.Errorf("%d times news of signals, want 1", signals)
	}
	if b.Traits().Polls {
		t.Error("the listener gets no news any more")
	}
}

// The database computes the same channel names.
func TestChannelsInTheDatabase(t *testing.T) {
	t.Parallel()
	url := cluster.NewDatabase(t)
	startStore(t, url, store.Identity{Namespace: "n", Instance: "i", Pod: "p"})
	conn := connect(t, url)
	for _, c := range [][2]string{
		{"n", "i"},
		{"", ""},
		{"ab", "c"},
		{"a", "bc"},
		{`\x00`, `\`},
		{`'"`, "ü\u2028\U0010FFFF"},
		{strings.Repeat("n", 300), strings.Repeat("pod-", 100)},
	} {
		var got string
		if err := conn.QueryRow(t.Context(), "SELECT locksidecar.channel($1, $2)", pgx.QueryExecModeExec, c[0], c[1]).Scan(&got); err != nil {
			t.Fatal(err)
		}
		if want := postgres.ChannelOf(c[0], c[1]); got != want {
			t.Errorf("%q: %s in the database, %s in Go", c, got, want)
		}
	}
}

// TestStatementsOfSignalsAndWatches counts their statements in the usual case.
func TestStatementsOfSignalsAndWatches(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	byTTL := askFor("ttl", s.lease)
	byTTL.TTL = time.Hour
	want(t, acquire(t, s, byTTL), store.Granted)
	want(t, acquire(t, s, askFor("k", s.lease)), store.Granted)
	ctx := t.Context()
	leases := []store.LeaseID{s.lease}
	signal := func(signals ...store.Signal) func() error {
		return func() error { _, err := s.Signal(ctx, signals); return err }
	}
	for _, c := range []struct {
		what string
		want int64
		do   func() error
	}{
		{"stop", 1, signal(store.Signal{Kind: store.Stop, Key: "k"}, store.Signal{Kind: store.Stop, Key: "ttl"})},
		{"break of a session's lock", 1, signal(store.Signal{Kind: store.Break, Key: "k"})},
		{"break of a bind:ttl lock", 2, signal(store.Signal{Kind: store.Break, Key: "ttl"})},
		{"signals", 1, func() error { _, err := s.Signals(ctx, leases); return err }},
		{"acknowledge", 1, func() error { return s.Acknowledge(ctx, []store.SignalID{1, 2, 3}) }},
		{"watch", 1, func() error { return s.Watch(ctx, []string{"a", "b", "k"}, s.lease) }},
		{"unwatch", 1, func() error { return s.Unwatch(ctx, []string{"a", "b", "k"}) }},
	} {
		cluster.ResetStatements(t, s.url)
		if err := c.do(); err != nil {
			t.Fatalf("%s: %v", c.what, err)
		}
		quiet(t, s.Store)
		if got := cluster.Statements(t, s.url, "%locksidecar%"); got != c.want {
			t.Errorf("%s: %d statements, want %d", c.what, got, c.want)
		}
	}
}
