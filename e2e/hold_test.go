package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
)

// holdSlack is how much later than promised a hold may end if a call waits.
const holdSlack = 100 * time.Millisecond

// endedAt checks how long after the grant of one lock the next one was granted.
func endedAt(t *testing.T, before, after answer, want time.Duration) {
	t.Helper()
	from, err := time.Parse(time.RFC3339Nano, before.str("acquired_at"))
	if err != nil {
		t.Fatal(err)
	}
	to, err := time.Parse(time.RFC3339Nano, after.str("acquired_at"))
	if err != nil {
		t.Fatal(err)
	}
	held := to.Sub(from)
	t.Logf("the next grant came %s after the one before, the hold is %s", held, want)
	if held < want-time.Millisecond || held > want+slowed(holdSlack) {
		t.Errorf("want between %s and %s", want, want+slowed(holdSlack))
	}
}

// TestMinHold: the next grant comes after the hold, for every end of the holder.
// Proves: promise 11
func TestMinHold(t *testing.T) {
	t.Parallel()
	const hold = 5 * time.Second
	body := fmt.Sprintf(`{"min_hold_ms":%d}`, hold.Milliseconds())
	ends := map[string]func(t *testing.T, s *sidecar, a *app, token int64){
		"released": func(t *testing.T, _ *sidecar, a *app, token int64) {
			a.release("cron", token)
			// For its holder the lock has ended, but for other calls it is held.
			a.call("PATCH", lockPath("cron"), fmt.Sprintf(`{"token":%d}`, token)).want(409, "not_holder")
			v := a.call("GET", lockPath("cron"), "")
			if v.str("state") != "held" || v.json["mine"] != false {
				t.Errorf("after the release: %s", v.body)
			}
			a.call("PUT", lockPath("cron"), "", "Cache-Control: no-cache").want(423, "held")
		},
		"dropped": func(_ *testing.T, _ *sidecar, a *app, _ int64) { a.close() },
		"stopped": func(t *testing.T, s *sidecar, _ *app, _ int64) {
			if code := s.stop(); code != 0 {
				t.Errorf("stopped with code %d", code)
			}
		},
		"killed": func(_ *testing.T, s *sidecar, _ *app, _ int64) { s.kill() },
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o, url := onPostgres(t)
			o = o.with(options{"TTL": "4s", "RENEW_INTERVAL": "500ms", "POSTGRES_POLL_INTERVAL": noPoll, "DRAIN_TIMEOUT": "100ms"})
			one, two := start(t, o), start(t, o.with(options{"TTL": "1h", "RENEW_INTERVAL": "20m"}))
			a, waiting := dial(t, one.socket), dial(t, two.socket)
			got := a.call("PUT", lockPath("cron"), body)
			token := got.granted()
			waiting.send("PUT", lockPath("cron"), `{"wait_ms":-1}`)
			two.awaitQueue("cron", 1)
			end(t, one, a, token)
			next := waiting.read("PUT", lockPath("cron"))
			if next.granted() <= token {
				t.Errorf("token %d after %d", next.int("token"), token)
			}
			endedAt(t, got, next, hold)
			waiting.release("cron", next.int("token"))
			nothingLeft(t, url)
		})
	}
	t.Run("memory", func(t *testing.T) {
		t.Parallel()
		s := start(t, options{"STORE_URL": "memory://"})
		a, waiting := dial(t, s.socket), dial(t, s.socket)
		got := a.call("PUT", lockPath("cron"), body)
		a.release("cron", got.granted())
		waiting.send("PUT", lockPath("cron"), `{"wait_ms":-1}`)
		endedAt(t, got, waiting.read("PUT", lockPath("cron")), hold)
	})
}

// TestMinHoldRestarted: a sidecar is killed, and another starts in its folder. The holds of the
// first one's locks stay.
// Proves: promise 11
func TestMinHoldRestarted(t *testing.T) {
	t.Parallel()
	const hold = 3 * time.Second
	o, url := onPostgres(t)
	o = o.with(options{"TTL": "1h", "POSTGRES_POLL_INTERVAL": noPoll})
	dir := folder(t)
	one := startIn(t, dir, o)
	got := dial(t, one.socket).call("PUT", lockPath("cron"), fmt.Sprintf(`{"min_hold_ms":%d}`, hold.Milliseconds()))
	dial(t, one.socket).acquire("other", "")
	one.kill()
	again := startIn(t, dir, o)
	a := dial(t, again.socket)
	a.acquire("other", "", "Cache-Control: no-cache") // this lock had no hold
	a.send("PUT", lockPath("cron"), `{"wait_ms":-1}`)
	next := a.read("PUT", lockPath("cron"))
	if next.granted() <= got.granted() {
		t.Errorf("token %d after %d", next.int("token"), got.int("token"))
	}
	endedAt(t, got, next, hold)
	if n := pgtest.Query[int64](t, url, "SELECT count(*) FROM locksidecar.locks WHERE hold_until IS NOT NULL"); n != 0 {
		t.Errorf("%d holds are left in the table after their end", n)
	}
}

// TestMaxHold: the sidecar ends a lock that an app holds for too long, and reports it. If the
// sidecar dies before, the lock ends with its lease.
// Proves: promise 11
func TestMaxHold(t *testing.T) {
	t.Parallel()
	const hold = time.Second
	body := fmt.Sprintf(`{"max_hold_ms":%d}`, hold.Milliseconds())
	stores(t, func(t *testing.T, o options) {
		s := start(t, o.with(options{"TTL": "1h"}))
		session, waiting := openSession(t, s.socket, ""), dial(t, s.socket)
		a := dial(t, s.socket)
		asked := time.Now() // the hold counts from the call to the store, which is before acquired_at
		token := a.acquire("k", body, session.joins())
		waiting.send("PUT", lockPath("k"), `{"wait_ms":-1}`)
		waiting.read("PUT", lockPath("k")).granted()
		if took := time.Since(asked); took < hold || took > hold+slowed(holdSlack) {
			t.Errorf("the next grant came %s after the call for the lock, want between %s and %s", took, hold, hold+slowed(holdSlack))
		}
		lost := session.want("lost")
		if lost.data["key"] != "k" || lost.data["reason"] != "max_hold" {
			t.Errorf("lost: %s", lost.raw)
		}
		for _, ans := range []answer{
			a.call("PATCH", lockPath("k"), fmt.Sprintf(`{"token":%d}`, token), session.joins()),
			a.call("DELETE", fmt.Sprintf("%s?token=%d", lockPath("k"), token), "", session.joins()),
		} {
			if ans.want(410, "lock_lost").str("reason") != "max_hold" {
				t.Errorf("a late claim: %s", ans.body)
			}
		}
	})
	t.Run("killed", func(t *testing.T) {
		const ttl = 4 * time.Second
		o, _ := onPostgres(t)
		o = o.with(options{"POSTGRES_POLL_INTERVAL": noPoll})
		one, two := start(t, o.with(options{"TTL": ttl.String(), "RENEW_INTERVAL": "500ms"})), start(t, o.with(options{"TTL": "1h"}))
		dial(t, one.socket).acquire("k", fmt.Sprintf(`{"max_hold_ms":%d}`, time.Hour.Milliseconds()))
		waiting := dial(t, two.socket)
		waiting.send("PUT", lockPath("k"), `{"wait_ms":-1}`)
		two.awaitQueue("k", 1)
		one.kill()
		began := time.Now()
		waiting.read("PUT", lockPath("k")).granted()
		if took := time.Since(began); took > ttl+slowed(holdSlack) {
			t.Errorf("granted %s after the kill, want at most %s", took, ttl+slowed(holdSlack))
		}
	})
}

// TestBindTTL: a bind:ttl lock outlives its connection, and ends on time if a call waits. Key and
// token are enough to extend and release it from any pod.
// Proves: promise 12
func TestBindTTL(t *testing.T) {
	t.Parallel()
	const ttl = time.Second
	o, url := onPostgres(t)
	o = o.with(options{"TTL": "1h", "POSTGRES_POLL_INTERVAL": noPoll})
	one, two := start(t, o), start(t, o)
	a := dial(t, one.socket)
	got := a.call("PUT", lockPath("cron"), fmt.Sprintf(`{"bind":"ttl","ttl_ms":%d}`, ttl.Milliseconds()))
	a.close()
	b := dial(t, two.socket)
	b.send("PUT", lockPath("cron"), fmt.Sprintf(`{"bind":"ttl","ttl_ms":%d,"wait_ms":-1}`, time.Hour.Milliseconds()))
	next := b.read("PUT", lockPath("cron"))
	endedAt(t, got, next, ttl)

	// The other pod extends and releases the lock.
	token := next.granted()
	c := dial(t, one.socket)
	extended := time.Now()
	c.call("PATCH", lockPath("cron"), fmt.Sprintf(`{"token":%d,"ttl_ms":%d}`, token, ttl.Milliseconds())).want(200, "")
	b.send("PUT", lockPath("cron"), `{"bind":"ttl","ttl_ms":600000,"wait_ms":-1}`)
	third := b.read("PUT", lockPath("cron")).granted()
	if took := time.Since(extended); took < ttl || took > ttl+slowed(holdSlack) {
		t.Errorf("granted %s after the TTL was set, want between %s and %s", took, ttl, ttl+slowed(holdSlack))
	}
	b.send("PUT", lockPath("cron"), `{"wait_ms":-1}`)
	two.awaitQueue("cron", 1)
	began := time.Now()
	c.release("cron", third)
	b.release("cron", b.read("PUT", lockPath("cron")).granted())
	if took := time.Since(began); took > slowed(promptly) {
		t.Errorf("handed off after %s, want at most %s", took, slowed(promptly))
	}
	nothingLeft(t, url)
}
