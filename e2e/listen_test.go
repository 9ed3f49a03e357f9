package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testing/pgproxy"
	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
)

const listening = "/* locksidecar:listen */%"

// promptly is the longest allowed time for news by a notification.
const promptly = 500 * time.Millisecond

// lostNews is a waiter, and a granter whose notification of the hand-off can be disturbed. Polls
// are too rare to help.
type lostNews struct {
	url             string
	proxy           *pgproxy.Proxy
	granter, waiter *sidecar
	holder, waiting *app
	token           int64
}

func loseNews(t *testing.T, o options, url string, ttl time.Duration) *lostNews {
	t.Helper()
	o = o.with(options{"POSTGRES_POLL_INTERVAL": noPoll, "TTL": ttl.String()})
	n := &lostNews{url: url, proxy: pgproxy.Start(t, o["STORE_URL"])}
	// The end of the granter's lease comes too late to help.
	n.granter = start(t, o.with(options{"STORE_URL": n.proxy.URL(), "TTL": "1h"}))
	n.waiter = start(t, o)
	n.holder = dial(t, n.granter.socket)
	n.token = n.holder.acquire("news", "")
	n.granter.hears() // its grants do not wait for the listener
	n.waiting = dial(t, n.waiter.socket)
	n.waiting.send("PUT", lockPath("news"), `{"wait_ms":-1}`)
	n.granter.awaitQueue("news", 1)
	n.waiter.hears()
	return n
}

// whereNewsIsHeard runs a test directly on a database, and behind a pooler with listeners past it.
func whereNewsIsHeard(t *testing.T, test func(t *testing.T, o options, url string)) {
	t.Run("direct", func(t *testing.T) {
		o, url := onPostgres(t)
		test(t, o, url)
	})
	t.Run("past PgBouncer", func(t *testing.T) {
		o, url := pastPgBouncer(t)
		test(t, o, url)
	})
}

// granted reads the waiter's answer, and returns its time after the fault.
func (n *lostNews) granted(t *testing.T, fault *pgproxy.Hook) time.Duration {
	t.Helper()
	select {
	case <-fault.Done():
	case <-time.After(patience):
		t.Fatal("the fault did not happen: no notification was sent to the waiter")
	}
	began := time.Now()
	if next := n.waiting.read("PUT", lockPath("news")).granted(); next <= n.token {
		t.Errorf("token %d after %d", next, n.token)
	}
	took := time.Since(began)
	t.Logf("granted %s after the fault", took.Round(time.Millisecond))
	return took
}

// TestNewsArrives: without a fault, the news arrives. The other tests depend on that.
// Proves: promise 6
func TestNewsArrives(t *testing.T) {
	t.Parallel()
	whereNewsIsHeard(t, func(t *testing.T, o options, url string) {
		n := loseNews(t, o, url, time.Hour)
		if got := pgtest.Backends(t, n.url, listening); got != 2 {
			t.Errorf("%d connections listen, want one for the waiter's sidecar and one for the holder's", got)
		}
		sent := n.proxy.On("notify_grants", pgproxy.BeforeSend, func() {})
		n.holder.release("news", n.token)
		if took := n.granted(t, sent); took > slowed(promptly) {
			t.Errorf("want at most %s", slowed(promptly))
		}
	})
}

// TestTheListeningBeginsTooLate: a sidecar begins to listen when a call waits, or an app may be told of a request to stop. What happened before its
// LISTEN is looked up after it. Neither polls nor renewals help.
// Proves: promise 6, promise 17, trap notifications
func TestTheListeningBeginsTooLate(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]func(t *testing.T, late, other *sidecar, began <-chan struct{}) (told func()){
		"a hand-off": func(t *testing.T, late, other *sidecar, began <-chan struct{}) func() {
			holder, waiting := dial(t, other.socket), dial(t, late.socket)
			token := holder.acquire("news", "")
			waiting.send("PUT", lockPath("news"), `{"wait_ms":-1}`)
			<-began
			other.awaitQueue("news", 1)
			holder.release("news", token)
			return func() { waiting.read("PUT", lockPath("news")).granted() }
		},
		"a request to stop": func(t *testing.T, late, other *sidecar, began <-chan struct{}) func() {
			session := openSession(t, late.socket, "")
			dial(t, late.socket).acquire("job", "", session.joins())
			<-began
			dial(t, other.socket).call("POST", stopPath("job"), `{"reason":"deploy"}`).want(202, "")
			return func() { session.want("stop") }
		},
		"a break": func(t *testing.T, late, other *sidecar, began <-chan struct{}) func() {
			session := openSession(t, late.socket, "")
			dial(t, late.socket).acquire("job", "", session.joins())
			<-began
			operator := dial(t, other.socket)
			operator.send("DELETE", lockPath("job")+"?force=true", "")
			return func() {
				session.want("lost")
				operator.read("DELETE", lockPath("job")).want(200, "")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			o, _ := onPostgres(t)
			o = o.with(options{"POSTGRES_POLL_INTERVAL": noPoll, "TTL": "1h", "ALLOW_FORCE": "true"})
			proxy := pgproxy.Start(t, o["STORE_URL"])
			late, other := start(t, o.with(options{"STORE_URL": proxy.URL()})), start(t, o)
			began, goOn := make(chan struct{}), make(chan struct{})
			proxy.On("listen", pgproxy.BeforeSend, func() {
				close(began)
				<-goOn
			})
			told := test(t, late, other, began)
			close(goOn)
			since := time.Now()
			told()
			if took := time.Since(since); took > slowed(promptly) {
				t.Errorf("told %s after LISTEN, want at most %s", took, slowed(promptly))
			}
		})
	}
}

// TestAHoldingSidecarHasOneConnection: a sidecar whose apps only hold locks neither listens nor has more connections than that of its renewals,
// and costs no notification of others.
// Proves: rule cost
func TestAHoldingSidecarHasOneConnection(t *testing.T) {
	t.Parallel()
	o, url := onPostgres(t)
	s := start(t, o.with(options{"TTL": "3s", "POSTGRES_POLL_INTERVAL": noPoll}))
	a := dial(t, s.socket)
	a.acquire("held", "")
	// That of the renewals stays. The others are closed when they were idle for 30 s.
	only := func() bool {
		return pgtest.Backends(t, url, anyStatement) == 1 && pgtest.Backends(t, url, renewal) == 1
	}
	for deadline := time.Now().Add(2 * time.Minute); !only(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d connections, %d of them for renewals", pgtest.Backends(t, url, anyStatement), pgtest.Backends(t, url, renewal))
		}
	}
	if !s.listener("off") {
		t.Error("the sidecar listens, and nobody here would be told anything")
	}
}

// TestListenerKilled: the waiter's listening connection is killed just before the hand-off. Its
// sidecar soon listens again and then checks for missed news. The next renewal is minutes away.
// Proves: promise 6, trap notifications
func TestListenerKilled(t *testing.T) {
	t.Parallel()
	limit := slowed(2 * time.Second) // includes a pause and a new connection
	whereNewsIsHeard(t, func(t *testing.T, o options, url string) {
		n := loseNews(t, o, url, time.Hour)
		killed := int64(0)
		fault := n.proxy.On("notify_grants", pgproxy.BeforeSend, func() { killed += pgtest.Terminate(t, n.url, listening) })
		n.holder.release("news", n.token)
		took := n.granted(t, fault)
		if killed != 2 {
			t.Errorf("%d listeners were killed, want the waiter's and the holder's", killed)
		}
		if took > limit {
			t.Errorf("want at most %s", limit)
		}
	})
}

// deafen makes the database send notifications of hand-offs to a channel without listeners.
const deafen = `CREATE OR REPLACE FUNCTION locksidecar.channel(ns text, its_instance text) RETURNS text
	LANGUAGE sql IMMUTABLE AS $$ SELECT 'nobody' $$`

// TestGranterKilled: the granter dies before it learns that its release is committed, and sends no
// news. The check with the waiter's renewals finds the grant.
// Proves: promise 6, trap no NOTIFY
func TestGranterKilled(t *testing.T) {
	t.Parallel()
	const ttl = 6 * time.Second
	limit := ttl/3 + slowed(time.Second) // the renewal interval, plus slack
	o, url := onPostgres(t)
	n := loseNews(t, o, url, ttl)
	execute(t, pgtest.Admin(n.url), deafen)
	fault := n.proxy.Cut(pgproxy.Cut{Statement: "release", Stage: pgproxy.AfterSend, Do: func() { _ = n.granter.cmd.Process.Kill() }})
	n.holder.send("DELETE", lockPath("news")+fmt.Sprintf("?token=%d", n.token), "")
	if took := n.granted(t, fault); took > limit {
		t.Errorf("want at most %s", limit)
	}
}
