package postgres_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testing/pgproxy"
	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/postgres"
)

// later is how far a change in TestEachRowIsJudgedByItself moves a token ahead.
const later = 1 << 40

// meanwhiles are what happens to the row of a key while a statement that takes the key waits for it. The keys are
// in the order in which a batch waits for them.
var meanwhiles = []struct{ key, sql string }{
	{"a freed again", "UPDATE locksidecar.locks SET token = token + $2, freed_at = clock_timestamp() WHERE namespace = 'n' AND key = $1"},
	{"b taken", "UPDATE locksidecar.locks SET lease_id = (SELECT id FROM locksidecar.leases WHERE ttl = '2 h'), token = token + $2, freed_at = NULL WHERE namespace = 'n' AND key = $1"},
	{"c locked", "SELECT $2::bigint FROM locksidecar.locks WHERE namespace = 'n' AND key = $1 FOR UPDATE"},
	{"d deleted", "DELETE FROM locksidecar.locks WHERE namespace = 'n' AND key = $1 AND $2::bigint > 0"},
	{"e freed again", "UPDATE locksidecar.locks SET token = token + $2, freed_at = clock_timestamp() WHERE namespace = 'n' AND key = $1"},
}

// A statement waits for several rows. It judges each one by itself, and grants each key with what was asked for it.
// A row of another namespace stays as it is.
func TestEachRowIsJudgedByItself(t *testing.T) {
	t.Parallel()
	type judged struct {
		keys []string
		rows bool
	}
	var all []string
	cases := make(map[string]judged)
	for _, m := range meanwhiles {
		all = append(all, m.key)
		cases["row "+m.key] = judged{[]string{m.key}, true}
	}
	cases["rows"], cases["session"] = judged{append(all, "f free"), true}, judged{append(all, "f free"), false}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			openLease(t, s, 2*time.Hour) // of the rival
			exec(t, s.conn, `INSERT INTO locksidecar.locks (namespace, key, token, freed_at, stopping, stop_reason, handed_by, acquired_at)
				SELECT n, k, locksidecar.token_at(clock_timestamp()), clock_timestamp(), '2000-01-01', 'before', 'before', '2000-01-01'
				FROM unnest('{m,n}'::text[]) n, unnest($1::text[]) k`, c.keys)
			before := pgtest.Query[string](t, s.url, "SELECT string_agg(l::text, ';' ORDER BY key) FROM locksidecar.locks l WHERE namespace = 'm'")
			exec(t, s.other, "BEGIN")
			for _, m := range meanwhiles {
				exec(t, s.other, m.sql, m.key, int64(later))
			}
			asks := make([]store.Ask, len(c.keys))
			for i, key := range c.keys {
				a := askFor(key, s.lease)
				a.Session, a.Owner, a.Traceparent, a.Data = "session "+key, "owner "+key, "trace "+key, []byte(`"`+key+`"`)
				asks[len(asks)-1-i] = a
			}
			if postgres.SetReleased(s.Store); c.rows {
				postgres.SetReleased(s.Store, c.keys...)
			}
			first := tokenNow(t, s.url)
			done := make(chan []store.Answer, 1)
			go func() {
				answers, err := s.Acquire(t.Context(), asks)
				if err != nil {
					t.Error(err)
				}
				done <- answers
			}()
			awaitBlocked(t, s.url)
			exec(t, s.other, "COMMIT")
			for i, a := range <-done {
				s.mustBeGrantedAsAsked(asks[i], a, first)
			}
			if after := pgtest.Query[string](t, s.url, "SELECT string_agg(l::text, ';' ORDER BY key) FROM locksidecar.locks l WHERE namespace = 'm'"); after != before {
				t.Errorf("the rows of another namespace were\n%s\nand are\n%s", before, after)
			}
		})
	}
}

// mustBeGrantedAsAsked checks the answer and the row of a key of TestEachRowIsJudgedByItself.
func (s *scene) mustBeGrantedAsAsked(ask store.Ask, a store.Answer, first int64) {
	s.Helper()
	switch ask.Key[0] {
	case 'b':
		want(s.T, a, store.Held)
		return
	case 'a', 'e':
		first += later - int64(time.Minute/time.Microsecond)
	}
	if want(s.T, a, store.Granted); a.Token < first {
		s.Errorf("%s: token %d, want at least %d", ask.Key, a.Token, first)
	}
	if n := s.count("locks", `namespace = 'n' AND key = $1 AND attempt_id = $2 AND lease_id = $3 AND token = $4
		AND session = 'session ' || key AND owner = 'owner ' || key AND traceparent = 'trace ' || key AND data = '"' || key || '"'
		AND stopping IS NULL AND stop_reason IS NULL AND handed_by = '' AND freed_at IS NULL AND acquired_at > '2000-01-01'`,
		ask.Key, ask.ID, ask.Lease, a.Token); n != 1 {
		s.Errorf("%s: the row is not the grant %+v of %+v", ask.Key, a, ask)
	}
}

// Whichever statement takes a key, the watchers learn of it, also if the watch began while the statement waited.
func TestEachWayToTakeAnnouncesTheGrant(t *testing.T) {
	t.Parallel()
	for name, take := range waysToTake {
		for _, waits := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, waits: %t", name, waits), func(t *testing.T) {
				t.Parallel()
				url := cluster.NewDatabase(t)
				a := newListener(t, url, "a", postgres.ListenAuto)
				s := &scene{t, a.Store, url, connect(t, url), connect(t, url), a.lease, nil}
				statementsThatTake["rows"].makeRows(s, askFor("k", s.lease))
				a.watch(t, "k")
				if waits {
					exec(t, s.conn, "UPDATE locksidecar.locks SET watched = false")
					exec(t, s.other, "BEGIN")
					exec(t, s.other, "UPDATE locksidecar.locks SET watched = true WHERE key = 'k'")
				}
				answers := s.inBackground(take, askFor("k", s.lease))
				if waits {
					awaitBlocked(t, url)
					exec(t, s.other, "COMMIT")
				}
				a.hears(t, "k", store.EventAcquired, want(t, <-answers, store.Granted).Token)
			})
		}
	}
}

// The connection breaks while a key is taken. The repeat finds the grant, or takes the key.
func TestARepeatFindsWhatARowWasTakenFor(t *testing.T) {
	t.Parallel()
	for name, statement := range map[string]string{"row": "acquire_row", "rows": "acquire_rows"} {
		for _, stage := range []pgproxy.Stage{pgproxy.BeforeSend, pgproxy.AfterSend, pgproxy.AfterCommandComplete} {
			t.Run(fmt.Sprint(statement, " ", stage), func(t *testing.T) {
				t.Parallel()
				proxy := pgproxy.Start(t, cluster.NewDatabase(t))
				s := newSceneOn(t, proxy.URL())
				asks := statementsThatTake[name].batch(askFor("k", s.lease))
				for _, ask := range asks {
					s.takeAndFree(ask.Key)
				}
				cut := proxy.Cut(pgproxy.Cut{Statement: statement, Stage: stage, Times: 1})
				if _, err := s.Acquire(t.Context(), asks); !store.OutcomeUnknown(err) {
					t.Errorf("%v, want an unknown outcome", err)
				}
				poll(t, "the cut", func() bool { return cut.Fired() == 1 })
				var answers []store.Answer
				poll(t, "an answer", func() (ok bool) {
					var err error
					answers, err = s.Acquire(t.Context(), asks)
					return err == nil
				})
				for i, a := range answers {
					want(t, a, store.Granted)
					if grant, lease, token := holder(t, s.conn, asks[i].Key); grant != asks[i].ID || lease != s.lease || token != a.Token {
						t.Errorf("%+v, but the row has grant %s, lease %s and token %d", a, grant, lease, token)
					}
				}
			})
		}
	}
}
