package e2e

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/locksidecar/locksidecar/internal/testing/pgproxy"
)

// TestPgBouncer: locks work through a pooler that gives each transaction another connection. Only
// the news of other pods must be polled for. A sidecar whose settings allow LISTEN notices that
// LISTEN does not work.
// Proves: trap pooler
func TestPgBouncer(t *testing.T) {
	t.Parallel()
	for _, listen := range []string{"never", "auto"} {
		t.Run(listen, func(t *testing.T) {
			url := cluster.NewDatabase(t)
			through := cluster.Pooler(t, url, 3) // fewer connections than two sidecars open
			o := options{"STORE_URL": through, "POSTGRES_LISTEN": listen, "POSTGRES_POLL_INTERVAL": "100ms", "RENEW_INTERVAL": "500ms"}
			one, two := start(t, o), start(t, o)
			exchange(t, one, two)
			exchangeMany(t, one, two)

			// Renewals work: a lock outlives its TTL.
			a, b := dial(t, one.socket), dial(t, two.socket)
			token := a.acquire("renewed", `{"ttl_ms":4000}`)
			for until := time.Now().Add(6 * time.Second); time.Now().Before(until); {
				b.call("PUT", lockPath("renewed"), `{"wait_ms":200}`).want(423, "wait_timeout")
			}
			a.release("renewed", token)
			nothingLeft(t, url)
			for _, s := range []*sidecar{one, two} {
				if code := s.stop(); code != 0 {
					t.Errorf("stopped with code %d", code)
				}
				s.noErrors()
			}
		})
	}
}

// exchangeMany mixes the statements of many clients on the pooler's few connections.
func exchangeMany(t *testing.T, sidecars ...*sidecar) {
	t.Helper()
	const clients, each = 16, 10
	r := &register{t: t}
	var wg sync.WaitGroup
	for i := range clients {
		a := dial(t, sidecars[i%len(sidecars)].socket)
		wg.Go(func() {
			defer a.close()
			for j := range each {
				key := fmt.Sprintf("many:%d", (i+j)%4)
				token := a.acquire(key, `{"wait_ms":20000}`)
				r.granted(key, int64(i+1), token)
				r.ending(key, int64(i+1))
				a.release(key, token)
			}
		})
	}
	wg.Wait()
	if got := r.grants.Load(); got != clients*each {
		t.Errorf("%d grants, want %d", got, clients*each)
	}
}

// earRole is the role for listening. It may only connect.
const earRole = "ear"

// pastPgBouncer returns the options of a sidecar that uses a pooler and listens past it, and the
// superuser's URL.
func pastPgBouncer(t *testing.T) (options, string) {
	t.Helper()
	o, url := onPostgres(t)
	config, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	admin := cluster.URL(config.Database)
	makeRole(t, admin, earRole, "LOGIN", "CONNECT")
	return o.with(options{
		"STORE_URL": cluster.Pooler(t, url, 3), "POSTGRES_LISTEN_URL": strings.Replace(admin, "postgres@", earRole+"@", 1),
	}), admin
}

// TestHandOffsBehindPgBouncer measures hand-offs between two sidecars. With a listener past the
// pooler, waiters do not poll. Without one, their next poll finds the grant.
// Proves: trap pooler
func TestHandOffsBehindPgBouncer(t *testing.T) {
	t.Parallel()
	rounds, interval := 5, 100*time.Millisecond
	if *plain {
		rounds, interval = 60, time.Second // for the times in docs/operate.md
	}
	t.Run("no pooler", func(t *testing.T) {
		o, url := onPostgres(t)
		heardHandOffs(t, o, url, rounds)
	})
	t.Run("POSTGRES_LISTEN_URL", func(t *testing.T) {
		o, url := pastPgBouncer(t)
		heardHandOffs(t, o, url, rounds)
	})
	t.Run("polled", func(t *testing.T) {
		o, _ := pastPgBouncer(t)
		o = o.with(options{"POSTGRES_LISTEN_URL": "", "POSTGRES_LISTEN": "never", "POSTGRES_POLL_INTERVAL": interval.String(), "TTL": "1h"})
		one, two := start(t, o), start(t, o)
		if slowest := slices.Max(handOffs(t, one, two, rounds, interval)); slowest > interval+slowed(promptly) {
			t.Errorf("want at most the poll interval of %s", interval)
		}
	})
}

func heardHandOffs(t *testing.T, o options, url string, rounds int) {
	t.Helper()
	o = o.with(options{"POSTGRES_POLL_INTERVAL": noPoll, "TTL": "1h"})
	one, two := start(t, o), start(t, o)
	handOffs(t, one, two, 2, 0) // each waits once
	for _, s := range []*sidecar{one, two} {
		s.await("it listens", func() bool { return s.listener("listening") })
	}
	cluster.ResetStatements(t, url)
	took := handOffs(t, one, two, rounds, 0)
	if slices.Max(took) > slowed(promptly) {
		t.Errorf("want at most %s", slowed(promptly))
	}
	// A release that takes 100 ms sends only a hint, and its waiter checks.
	hinted := slices.DeleteFunc(took, func(d time.Duration) bool { return d < 100*time.Millisecond })
	if n := cluster.Statements(t, url, "/* locksidecar:check */%"); n > int64(len(hinted)) {
		t.Errorf("waiters checked %d times although news arrives; %d hand-offs took so long that their news is a hint", n, len(hinted))
	}
}

// handOffs lets clients of two sidecars hand a lock to each other, each after a random time up to
// atMost. It returns how long they took, the fastest first.
func handOffs(t *testing.T, one, two *sidecar, rounds int, atMost time.Duration) []time.Duration {
	t.Helper()
	holder, waiter := dial(t, one.socket), dial(t, two.socket)
	token := holder.acquire("handed", "")
	took := make([]time.Duration, rounds)
	for i := range took {
		waiter.send("PUT", lockPath("handed"), `{"wait_ms":-1}`)
		one.awaitQueue("handed", 1)
		if atMost > 0 {
			time.Sleep(rand.N(atMost)) // a release comes at any time between two polls
		}
		began := time.Now()
		holder.release("handed", token)
		token = waiter.read("PUT", lockPath("handed")).granted()
		took[i] = time.Since(began)
		holder, waiter, one, two = waiter, holder, two, one
	}
	holder.release("handed", token)
	holder.close()
	waiter.close()
	slices.Sort(took)
	t.Logf("%d hand-offs: median %s, slowest %s", rounds, took[rounds/2].Round(10*time.Microsecond), took[rounds-1].Round(10*time.Microsecond))
	return took
}

// listener reports whether the listener is in this state.
func (s *sidecar) listener(state string) bool {
	n, _ := s.figures().value(`locksidecar_listener{state="` + state + `"}`)
	return n == 1
}

// TestListenURLOfNoUse: if the listener cannot work, one log line gives the reason, and hand-offs
// are polled for until it works.
// Proves: trap pooler
func TestListenURLOfNoUse(t *testing.T) {
	t.Parallel()
	o, url := pastPgBouncer(t)
	proxy := pgproxy.Start(t, url)
	proxy.Refuse(true)
	for name, test := range map[string]struct{ listen, says string }{
		"another database": {cluster.NewDatabase(t), "LOCKSIDECAR_POSTGRES_LISTEN_URL leads to the database"},
		"unreachable":      {proxy.URL(), "refused"},
	} {
		t.Run(name, func(t *testing.T) {
			o := o.with(options{"NAMESPACE": name, "POSTGRES_LISTEN_URL": test.listen, "POSTGRES_POLL_INTERVAL": "100ms"})
			one, two := start(t, o), start(t, o)
			exchange(t, one, two)
			for _, s := range []*sidecar{one, two} {
				s.await("the log line with the reason", func() bool { return len(s.logged("do not arrive")) > 0 })
				if n := len(s.logged("do not arrive, trying again", test.says, `"level":"WARN"`)); n != 1 {
					t.Errorf("%d lines say that %q, want 1:\n%s", n, test.says, s.log.tail(20))
				}
				if !s.listener("connecting") || !s.tryReady() {
					t.Error("the sidecar should be ready, and try to listen")
				}
			}
			if test.listen == proxy.URL() {
				proxy.Refuse(false)
				one.await("it listens", func() bool { return one.listener("listening") })
			}
		})
	}
}
