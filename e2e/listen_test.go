package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testing/pgproxy"
	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
)

const listening = "/* locksidecar:listen */%"

// promptly is how long news may take that comes by itself.
const promptly = 500 * time.Millisecond

// lostNews is a waiter and a granter whose statement that tells of the hand-off can
// be tampered with. No poll can help.
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
	// Nor may the end of the granter's lease help.
	n.granter = start(t, o.with(options{"STORE_URL": n.proxy.URL(), "TTL": "1h"}))
	n.waiter = start(t, o)
	n.holder = dial(t, n.granter.socket)
	n.token = n.holder.acquire("news", "")
	n.granter.hears() // whose grants do not wait for that
	n.waiting = dial(t, n.waiter.socket)
	n.waiting.send("PUT", lockPath("news"), `{"wait_ms":-1}`)
	n.granter.awaitQueue("news", 1)
	n.waiter.hears()
	return n
}

// whereNewsIsHeard runs a test on a database, and behind a pooler past which the sidecars
// listen.
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

// granted reads the waiter's answer and returns how long after the fault it came.
func (n *lostNews) granted(t *testing.T, fault *pgproxy.Hook) time.Duration {
	t.Helper()
	select {
	case <-fault.Done():
	case <-time.After(patience):
		t.Fatal("the fault did not happen: nothing was sent to tell the waiter")
	}
	began := time.Now()
	if next := n.waiting.read("PUT", lockPath("news")).granted(); next <= n.token {
		t.Errorf("token %d after %d", next, n.token)
	}
	took := time.Since(began)
	t.Logf("granted %s after the fault", took.Round(time.Millisecond))
	return took
}

// TestNewsArrives: the good case, without which the others prove nothing.
func TestNewsArrives(t *testing.T) {
	t.Parallel()
	whereNewsIsHeard(t, func(t *testing.T, o options, url string) {
		n := loseNews(t, o, url, time.Hour)
		if got := pgtest.Backends(t, n.url, listening); got != 2 {
			t.Errorf("%d connections listen, want that of the waiter's sidecar, and that of the holder's", got)
		}
		sent := n.proxy.On("notify_grants", pgproxy.BeforeSend, func() {})
		n.holder.release("news", n.token)
		if took := n.granted(t, sent); took > slowed(promptly) {
			t.Errorf("want within %s", slowed(promptly))
		}
	})
}

// TestListenerKilled: the waiter's ear is cut off just before the hand-off and its news.
// It hears again soon, and then looks what it missed; it does not wait for the next
// renewal, which is minutes away.
func TestListenerKilled(t *testing.T) {
	t.Parallel()
	limit := slowed(2 * time.Second) // to connect anew, with its pause
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
			t.Errorf("want within %s", limit)
		}
	})
}

// deafen makes the database send the words of hand-offs to where nobody listens.
const deafen = `CREATE OR REPLACE FUNCTION locksidecar.channel(ns text, its_instance text) RETURNS text
	LANGUAGE sql IMMUTABLE AS $$ SELECT 'nobody' $$`

// TestGranterKilled: the granter dies before it hears that its release is committed, and
// nobody tells the waiter, ever. The check that comes with its renewals finds the grant.
func TestGranterKilled(t *testing.T) {
	t.Parallel()
	const ttl = 6 * time.Second
	limit := ttl/3 + slowed(time.Second) // the renewal interval, and slack
	o, url := onPostgres(t)
	n := loseNews(t, o, url, ttl)
	execute(t, pgtest.Admin(n.url), deafen)
	fault := n.proxy.Cut(pgproxy.Cut{Statement: "release", Stage: pgproxy.AfterSend, Do: func() { _ = n.granter.cmd.Process.Kill() }})
	n.holder.send("DELETE", lockPath("news")+fmt.Sprintf("?token=%d", n.token), "")
	if took := n.granted(t, fault); took > limit {
		t.Errorf("want within %s", limit)
	}
}
