package postgres_test

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
	"github.com/locksidecar/locksidecar/internal/testing/pgtest/pgroles"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/postgres"
)

// The suite tests which grants are keepable, and what ends that. These tests are about the statements that make such grants, and about
// what comes between two of their steps.

// keepers are two instances. The first one hears its recalls.
type keepers struct {
	*scene // of the first
	ear    *listener
	b      *postgres.Store
	theirs store.LeaseID
}

func newKeepers(t *testing.T) *keepers {
	t.Helper()
	url := cluster.NewDatabase(t)
	i := newListener(t, url, "i", postgres.ListenAlways)
	i.awaitHearing(t)
	b := startStore(t, url, store.Identity{Namespace: "n", Instance: "b", Pod: "p"})
	s := &scene{t, i.Store, url, connect(t, url), connect(t, url), i.lease, nil}
	return &keepers{s, i, b, openLease(t, b, time.Hour)}
}

// releasedOnce gets and releases a key, and returns the token of that grant.
func (s *scene) releasedOnce(key string) int64 {
	s.Helper()
	token := want(s.T, acquire(s.T, s, askFor(key, s.lease)), store.Granted).Token
	s.givesUp(key, token)
	return token
}

func (s *scene) givesUp(key string, token int64) {
	s.Helper()
	if v := release(s.T, s, store.Claim{Key: key, Token: token, Lease: s.lease}); v.Status != store.Holds {
		s.Fatalf("released: %+v", v)
	}
}

// keeps gets a key by a keepable grant.
func (s *scene) keeps(key string) store.Answer {
	s.Helper()
	ask := askFor(key, s.lease)
	ask.Last = s.releasedOnce(key)
	a := want(s.T, acquire(s.T, s, ask), store.Granted)
	if !a.Keepable {
		s.Fatalf("not keepable: %+v", a)
	}
	return a
}

func (k *keepers) awaitRecall(key string) {
	k.Helper()
	k.ear.await(k.T, "a recall of "+key, func(n store.News) bool { return n.Recall && n.Key == key })
}

// Each statement that takes free keys compares the token of an ask with the row of its key.
func TestEachStatementMakesKeepableGrants(t *testing.T) {
	t.Parallel()
	for name, take := range statementsThatTake {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			for _, right := range []bool{true, false} {
				ask := askFor(fmt.Sprintf("k %t", right), s.lease)
				var lasts []int64
				for _, a := range take.batch(ask) {
					lasts = append(lasts, s.releasedOnce(a.Key))
				}
				asks := take.of(s, ask)
				for i := range asks {
					if asks[i].Last = lasts[i]; !right { // that of the other key, if there is one
						asks[i].Last = lasts[len(lasts)-1-i] + 1/int64(len(lasts))
					}
				}
				answers, err := s.Acquire(t.Context(), asks)
				if err != nil {
					t.Fatal(err)
				}
				for i, a := range answers {
					want(t, a, store.Granted)
					if keepable := right && asks[i].TTL == 0; a.Keepable != keepable || s.count("locks", fmt.Sprintf("keepable AND key = '%s'", asks[i].Key)) == 1 != keepable {
						t.Errorf("the last token is right: %t: %+v gets %+v", right, asks[i], a)
					}
				}
			}
		})
	}
}

// What waited for the row judges it as it is then: somebody watches, or had the key in between.
// Proves: promise 1
func TestAKeepableGrantThatWaited(t *testing.T) {
	t.Parallel()
	for event, sql := range map[string]string{
		"watched":           `SELECT locksidecar.watch('n', 'infinity', '{k}', $1, 'b')`,
		"held and released": `UPDATE locksidecar.locks SET token = token + 256 WHERE key = 'k' AND $1::uuid IS NOT NULL`,
		"held and lost":     `UPDATE locksidecar.locks SET attempt_id = gen_random_uuid() WHERE key = 'k' AND $1::uuid IS NOT NULL`,
		"locked, unchanged": `SELECT FROM locksidecar.locks WHERE key = 'k' AND $1::uuid IS NOT NULL FOR UPDATE`,
	} {
		for name, take := range statementsThatTake {
			t.Run(event+"/"+name, func(t *testing.T) {
				t.Parallel()
				s := newScene(t)
				b := startStore(t, s.url, store.Identity{Namespace: "n", Instance: "b", Pod: "p"})
				theirs := openLease(t, b, time.Hour)
				ask := askFor("k", s.lease)
				ask.Last = s.releasedOnce("k")
				take.makeRows(s, ask)
				asks := take.of(s, ask)
				exec(t, s.other, "BEGIN")
				exec(t, s.other, sql, theirs)
				got := make(chan store.Answer, 1)
				go func() {
					answers, err := s.Acquire(t.Context(), asks)
					if err != nil {
						t.Error(err)
						answers = make([]store.Answer, 1)
					}
					got <- answers[0]
				}()
				awaitBlocked(t, s.url)
				exec(t, s.other, "COMMIT")
				if a := want(t, <-got, store.Granted); a.Keepable != (event == "locked, unchanged") {
					t.Errorf("keepable: %t", a.Keepable)
				}
			})
		}
	}
}

// The keepable grant is in flight when another instance begins to wait, or to watch.
// Proves: promise 5
func TestARecallOfAGrantInFlight(t *testing.T) {
	t.Parallel()
	for name, begin := range map[string]func(k *keepers) error{
		"one waiter": func(k *keepers) error {
			answers, err := k.b.Enqueue(k.Context(), []store.Ask{askFor("k", k.theirs)})
			if err == nil && (answers[0].Outcome != store.Queued || !answers[0].Lock.Kept) {
				k.Errorf("%+v", answers)
			}
			return err
		},
		"many waiters": func(k *keepers) error {
			asks := []store.Ask{askFor("k", k.theirs), askFor("other", k.theirs), askFor("k", k.theirs), askFor("other", k.theirs), askFor("k", k.theirs)}
			answers, err := k.b.Enqueue(k.Context(), asks)
			for i, a := range answers {
				if k := asks[i].Key == "k"; a.Outcome != store.Queued || a.Position != i/2+1 || a.Lock.Kept != k {
					return fmt.Errorf("ask %d: %+v", i, a)
				}
			}
			return err
		},
		"a watcher": func(k *keepers) error { return k.b.Watch(k.Context(), []string{"k"}, k.theirs) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := newKeepers(t)
			want(t, acquire(t, k, askFor("other", k.lease)), store.Granted)
			k.releasedOnce("k")
			exec(t, k.other, "BEGIN")
			exec(t, k.other, `UPDATE locksidecar.locks SET lease_id = $1, attempt_id = gen_random_uuid(), token = token + 256, keepable = true,
				acquired_at = clock_timestamp() WHERE key = 'k'`, k.lease)
			done := make(chan error, 1)
			go func() { done <- begin(k) }()
			awaitBlocked(t, k.url)
			exec(t, k.other, "COMMIT")
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			k.awaitRecall("k")
			if k.count("locks", "key = 'other' AND keepable") != 0 {
				t.Error("another key is kept")
			}
		})
	}
}

// The kept key is given up, amended or adopted while another instance begins to wait, in either order. The waiter is recalled for, is
// handed the key, or hears that a session has it.
// Proves: promise 5
func TestAWaiterMeetsWhatBecomesOfAKeptKey(t *testing.T) {
	t.Parallel()
	const enqueue = `SELECT locksidecar.ask('n', 'infinity', true, 'b', 'p', '{k}', ARRAY[$1::uuid], ARRAY[$2::uuid], '{0}', '{0}', '{false}',
		'{s}', '{o}', '{NULL}', '{t}', '{NULL}', NULL)`
	type change func(k *keepers, token int64) error
	amended := func(found []store.Amended, err error) error {
		if err == nil && (found[0].Status != store.Holds || found[0].Lock.Kept) {
			err = fmt.Errorf("%+v", found)
		}
		return err
	}
	changes := map[string]change{
		"given up": func(k *keepers, token int64) error {
			verdicts, err := k.Release(k.Context(), []store.Claim{{Key: "k", Token: token, Lease: k.lease}})
			if err == nil && verdicts[0].Status != store.Holds {
				err = fmt.Errorf("%+v", verdicts)
			}
			return err
		},
		"checked": func(k *keepers, token int64) error {
			return amended(k.Amend(k.Context(), []store.Change{{Key: "k", Token: token, Lease: k.lease}}))
		},
		"adopted": func(k *keepers, token int64) error {
			return amended(k.Adopt(k.Context(), []store.Adoption{{
				Change: store.Change{Key: "k", Token: token + 1, Lease: k.lease}, Served: []store.AttemptID{uuid.New()}, AcquiredAt: time.Now(),
			}}))
		},
	}
	for name, change := range changes {
		t.Run("the waiter first, "+name, func(t *testing.T) {
			t.Parallel()
			k := newKeepers(t)
			b := newListener(t, k.url, "c", postgres.ListenAlways)
			b.awaitHearing(t)
			waiter := askFor("k", b.lease)
			token := k.keeps("k").Token
			exec(t, k.other, "BEGIN")
			exec(t, k.other, enqueue, waiter.ID, b.lease)
			done := make(chan error, 1)
			go func() { done <- change(k, token) }()
			awaitBlocked(t, k.url)
			exec(t, k.other, "COMMIT")
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			if name == "given up" {
				b.awaitGrant(t, waiter)
			} else {
				b.await(t, "a hint", func(n store.News) bool { return isHint(n, waiter) })
			}
		})
	}
	for name, sql := range map[string]string{
		"given up": `UPDATE locksidecar.locks SET lease_id = NULL, attempt_id = NULL, freed_at = clock_timestamp() WHERE key = 'k' AND token = $1 AND lease_id = $2`,
		"checked":  `SELECT locksidecar.amend('n', 'infinity', 'i', '{k}', ARRAY[$1::bigint], ARRAY[$2::uuid], '{0}', '{false}', '{NULL}')`,
		"adopted": `SELECT locksidecar.adopt('n', 'infinity', 'i', '{k}', ARRAY[$1::bigint + 1], ARRAY[$2::uuid], '{0}', '{false}', '{NULL}',
			ARRAY[gen_random_uuid()::text], '{s}', '{o}', ARRAY[clock_timestamp()], '{t}')`,
	} {
		t.Run(name+" first", func(t *testing.T) {
			t.Parallel()
			k := newKeepers(t)
			token := k.keeps("k").Token
			exec(t, k.other, "BEGIN")
			exec(t, k.other, sql, token, k.lease)
			got := make(chan store.Answer, 1)
			go func() {
				answers, err := k.b.Enqueue(t.Context(), []store.Ask{askFor("k", k.theirs)})
				if err != nil {
					t.Error(err)
					answers = make([]store.Answer, 1)
				}
				got <- answers[0]
			}()
			awaitBlocked(t, k.url)
			exec(t, k.other, "COMMIT")
			a := <-got
			if name == "given up" {
				want(t, a, store.Granted)
			} else if want(t, a, store.Queued); a.Lock.Kept {
				t.Error("waits behind a kept key")
			}
		})
	}
}

// An ask that comes again costs what another one does, and a kept key is given up by the statement that does not wait for its flush.
func TestStatementsOfKeptKeys(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	token := s.releasedOnce("k")
	for range 3 {
		ask := askFor("k", s.lease)
		ask.Last = token
		cluster.ResetStatements(t, s.url)
		a := want(t, acquire(t, s, ask), store.Granted)
		s.givesUp("k", a.Token)
		if n := cluster.Statements(t, s.url, "%locksidecar:acquire_row %") + 10*cluster.Statements(t, s.url, "%locksidecar:release_one %"); n != 11 || !a.Keepable {
			t.Errorf("a pair takes other statements (%d), keepable %t", n, a.Keepable)
		}
		if n := cluster.Statements(t, s.url, "%locksidecar%"); n != 2 {
			t.Errorf("%d statements", n)
		}
		token = a.Token
	}
}

// Any database user can send a recall. One that names no key is ignored.
// Proves: promise 6, threat database role
func TestRecalledWords(t *testing.T) {
	t.Parallel()
	k := newKeepers(t)
	const key = "a key, with spaces: 🔑\x7f"
	k.keeps(key)
	for _, payload := range []string{"recall:", "recall:!", "recall:/w==", "recall", "recall:YQ", "recall: YQ=="} {
		exec(t, k.conn, "SELECT pg_notify($1, $2)", postgres.ChannelOf("n", "i"), payload)
	}
	want(t, enqueue(t, k.b, askFor(key, k.theirs)), store.Queued)
	k.ear.await(t, "the only recall", func(n store.News) bool {
		if n.Recall && n.Key != key {
			t.Errorf("%q is recalled", n.Key)
		}
		return n.Recall
	})
}

// A listener that does not hear anything says so, because a recall would be lost.
func TestWhoHears(t *testing.T) {
	t.Parallel()
	url := cluster.NewDatabase(t)
	never := newListener(t, url, "never", postgres.ListenNever)
	l := newListener(t, url, "l", postgres.ListenAuto)
	if never.Traits().Hears || l.Traits().Hears {
		t.Error("who does not listen hears")
	}
	l.Listen(true)
	poll(t, "the listener hears", func() bool { return l.Traits().Hears })
	l.await(t, "the news of that", func(n store.News) bool { return n.Missed })
	exec(t, connect(t, url), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
		WHERE datname = current_database() AND pid <> pg_backend_pid() AND query LIKE '%locksidecar:listen%'`)
	l.await(t, "that news may have been missed", func(n store.News) bool { return n.Missed })
}

// While keys are kept, a listener notices soon that its connection is silent because nothing arrives any more.
// Trap: a connection that is cut without a word.
func TestAKeeperNoticesThatItIsDeaf(t *testing.T) {
	t.Parallel()
	own := pgtest.Start(t, pgtest.InMemory(), pgroles.Template())
	url := own.NewDatabase(t)
	s := only(t, postgres.Config{
		URL: url, Listen: postgres.ListenAlways, Timeout: time.Second,
	}, store.Identity{Namespace: "n", Instance: "i", Pod: "p"})
	start(t, s, nil)
	poll(t, "the listener hears", func() bool { return s.Traits().Hears })
	listens := pgtest.Query[int](t, url, `SELECT pid FROM pg_stat_activity
		WHERE datname = current_database() AND pid <> pg_backend_pid() AND query LIKE '%locksidecar:listen%'`)
	if err := syscall.Kill(listens, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(listens, syscall.SIGCONT) })
	s.Keeping(true) // after the silence has begun
	poll(t, "the listener does not hear", func() bool { return !s.Traits().Hears })
}

// The instance of the first waiter ends before it sends the recall, or the answer to its ask is lost. The next waiter sends one.
func TestARecallThatWasNotSent(t *testing.T) {
	t.Parallel()
	k := newKeepers(t)
	token := k.keeps("k").Token
	exec(t, k.other, `SELECT locksidecar.ask('n', 'infinity', true, 'b', 'p', '{k}', ARRAY[gen_random_uuid()], ARRAY[$1::uuid], '{0}', '{0}', '{false}',
		'{s}', '{o}', '{NULL}', '{t}', '{NULL}', NULL)`, k.theirs)
	c := startStore(t, k.url, store.Identity{Namespace: "n", Instance: "c", Pod: "p"})
	waiter := askFor("k", openLease(t, c, time.Hour))
	want(t, enqueue(t, c, waiter), store.Queued)
	k.awaitRecall("k")
	k.givesUp("k", token)
}
