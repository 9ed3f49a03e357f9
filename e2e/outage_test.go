package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
	"github.com/locksidecar/locksidecar/internal/testing/pgtest/pgroles"
)

// load is clients that acquire and release a few keys, also during outages.
type load struct {
	t       *testing.T
	r       *register
	refused atomic.Int64
	end     atomic.Bool
	wg      sync.WaitGroup
}

const loadKeys = 5

// underLoad starts clients behind each sidecar.
func underLoad(t *testing.T, clients int, sidecars ...*sidecar) *load {
	t.Helper()
	l := &load{t: t, r: &register{t: t}}
	for i := range clients {
		a := dial(t, sidecars[i%len(sidecars)].socket)
		l.wg.Go(func() { l.client(a, int64(i+1)) })
	}
	t.Cleanup(l.stop)
	return l
}

func (l *load) stop() {
	l.end.Store(true)
	l.wg.Wait()
}

func (l *load) client(a *app, id int64) {
	for i := id; !l.end.Load(); i++ {
		key := fmt.Sprintf("load:%d", i%loadKeys)
		ans := a.call("PUT", lockPath(key), `{"wait_ms":5000}`)
		switch ans.status {
		case 503:
			l.unavailable(ans)
			continue
		case 423:
			continue
		}
		token := ans.granted()
		l.r.granted(key, id, token)
		l.r.ending(key, id)
		l.release(a, key, token)
	}
}

// release retries until the outcome is known, and once more at the end of the load, because nothing
// may be left.
func (l *load) release(a *app, key string, token int64) {
	for last := false; !last; {
		last = l.end.Load()
		ans := a.call("DELETE", fmt.Sprintf("%s?token=%d", lockPath(key), token), "")
		if ans.status != 503 {
			return // released now, by an earlier attempt, or with the lease
		}
		l.unavailable(ans)
	}
}

func (l *load) unavailable(ans answer) {
	ans.want(503, "store_unavailable")
	if ans.header.Get("Retry-After") == "" {
		l.t.Error("no Retry-After")
	}
	l.refused.Add(1)
	time.Sleep(20 * time.Millisecond) // the client's pause before a retry
}

// goesOn waits for this number of further grants.
func (l *load) goesOn(more int64) {
	l.t.Helper()
	want := l.r.grants.Load() + more
	eventually(l.t, fmt.Sprint(more, " more grants"), func() bool { return l.r.grants.Load() >= want })
}

// TestDatabaseKilled: PostgreSQL is killed under load and recovers within the TTL. Locks stay held,
// waiters still wait, and clients continue without help.
// Proves: promise 8
func TestDatabaseKilled(t *testing.T) {
	t.Parallel()
	own := pgtest.Start(t, pgroles.Template())
	url := own.NewDatabase(t)
	o := options{"STORE_URL": url, "TTL": "20s"}
	one, two := start(t, o), start(t, o)
	session := openSession(t, one.socket, "")
	holder, waiter := dial(t, one.socket), dial(t, two.socket)
	token := holder.acquire("kept", "", session.joins())
	waiter.send("PUT", lockPath("kept"), `{"wait_ms":-1}`)
	one.awaitQueue("kept", 1)
	l := underLoad(t, 16, one, two)
	for range 2 { // in the second round, the sidecars have recovered once
		l.goesOn(50)
		own.Kill()
		refused := l.refused.Load()
		eventually(t, "answers about the outage", func() bool { return l.refused.Load() >= refused+20 })
		for _, s := range []*sidecar{one, two} {
			var ans answer
			// A process of the server that is busy outlives its first process for a moment, and may grant a lock.
			eventually(t, "a refusal", func() bool {
				app := dial(t, s.socket)
				defer app.close()
				ans = app.call("PUT", lockPath("new"), "")
				return ans.status != 200 && ans.status != 423
			})
			if ans.want(503, "store_unavailable"); ans.header.Get("Retry-After") == "" {
				t.Error("no Retry-After")
			}
		}
		if view := holder.call("GET", lockPath("kept"), "", session.joins()); view.json["mine"] != true {
			t.Errorf("during the outage: %s", view.body)
		}
		own.Restart(t)
		one.await("ready again", one.tryReady)
		two.await("ready again", two.tryReady)
		l.goesOn(50)
	}
	l.stop()
	holder.release("kept", token, session.joins())
	if next := waiter.read("PUT", lockPath("kept")).granted(); next <= token {
		t.Errorf("token %d after %d", next, token)
	}
	waiter.close()
	select {
	case e := <-session.events:
		t.Errorf("the session's event is %s %s", e.name, e.raw)
	default:
	}
	nothingLeft(t, url)
	t.Logf("%d grants, %d refusals", l.r.grants.Load(), l.refused.Load())
}

// TestDatabaseGoneForLong: in an outage longer than the TTL, locks are lost at their deadline and
// not before. When the database is back, the sidecars go on without help.
// Proves: promise 8, promise 10
func TestDatabaseGoneForLong(t *testing.T) {
	t.Parallel()
	own := pgtest.Start(t, pgroles.Template())
	url := own.NewDatabase(t)
	goneForLong(t, url, own.Kill, func() { own.Restart(t) })
	nothingLeft(t, url)
}

func goneForLong(t *testing.T, url string, kill, restart func()) {
	t.Helper()
	const ttl = 5 * time.Second
	o := options{"STORE_URL": url, "TTL": ttl.String(), "RENEW_INTERVAL": "1s"}
	one, two := start(t, o), start(t, o)
	session := openSession(t, one.socket, "")
	holder, plain, waiter := dial(t, one.socket), dial(t, one.socket), dial(t, two.socket)
	token := holder.acquire("gone", "", session.joins())
	other := plain.acquire("other", "")
	waiter.send("PUT", lockPath("gone"), `{"wait_ms":-1}`)
	one.awaitQueue("gone", 1)

	kill()
	killed, seen := time.Now(), 0
	for {
		asked := time.Since(killed)
		if view := holder.call("GET", lockPath("gone"), "", session.joins()); view.json["mine"] != true {
			break
		}
		if seen++; asked > ttl {
			t.Fatalf("still held %s after the kill of the database", asked)
		}
		time.Sleep(5 * time.Millisecond) // the pause of a poll
	}
	// At worst, the database is killed just before a renewal, which may be late on a busy machine.
	if lasted := time.Since(killed); seen == 0 || lasted < ttl/4 {
		t.Errorf("the lock lasted only %s, seen %d times", lasted, seen)
	}
	if e := session.next(); e.name != "lost" || e.data["key"] != "gone" || e.data["reason"] != "store_lost" {
		t.Errorf("event %s %s", e.name, e.raw)
	}
	for _, c := range []answer{
		holder.call("PATCH", lockPath("gone"), fmt.Sprintf(`{"token":%d}`, token), session.joins()),
		plain.call("DELETE", fmt.Sprintf("%s?token=%d", lockPath("other"), other), ""),
	} {
		if reason := c.want(410, "lock_lost").str("reason"); reason != "store_lost" {
			t.Errorf("reason %q", reason)
		}
	}
	restart()
	one.await("ready again", one.tryReady)
	// A wait lasts as long as its lease, or longer if the database recovers in time.
	ans := waiter.read("PUT", lockPath("gone"))
	if ans.status != 200 {
		ans.want(503, "store_unavailable")
		ans = waiter.call("PUT", lockPath("gone"), `{"wait_ms":10000}`)
	}
	if next := ans.granted(); next <= token {
		t.Errorf("token %d after %d", next, token)
	}
	if next := plain.acquire("other", `{"wait_ms":10000}`); next <= other {
		t.Errorf("token %d after %d", next, other)
	}
	waiter.close()
	plain.close()
}

// TestCrashLosesQueuePositions: an enqueue is not flushed to the disk at once, so a crash can lose it,
// but no earlier commit. Its sidecar queues it again, after news of the listening connection, or at
// its next check without a listener. There are no renewals in this test.
// Proves: promise 5
func TestCrashLosesQueuePositions(t *testing.T) {
	t.Parallel()
	// Only the statements of this test flush, because the server's own flushes are switched off.
	own := pgtest.Start(t, pgroles.Template(), pgtest.WithSetting("autovacuum", "off"), pgtest.WithSetting("bgwriter_lru_maxpages", "0"))
	for name, o := range map[string]options{"listening": {}, "polling": {"POSTGRES_LISTEN": "never"}} {
		t.Run(name, func(t *testing.T) {
			url := own.NewDatabase(t)
			o = o.with(options{"STORE_URL": url, "TTL": "1h"})
			one, two := start(t, o), start(t, o)
			holder := dial(t, one.socket)
			tokens := map[string]int64{"kept": holder.acquire("kept", ""), "line": holder.acquire("line", "")}
			// The WAL writer would flush unflushed commits. It is stopped.
			writer := pgtest.Query[int](t, url, "SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'")
			if err := syscall.Kill(writer, syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			wait := func(key string, ahead int64) *app {
				waiter := dial(t, two.socket)
				waiter.send("PUT", lockPath(key), `{"wait_ms":-1}`)
				one.awaitQueue(key, ahead+1)
				return waiter
			}
			first := wait("line", 0)
			holder.acquire("another", "") // its flush includes earlier commits
			second, only := wait("line", 1), wait("kept", 0)
			before := waitingGrants(url)
			if len(before) != 3 {
				t.Fatalf("queued: %v", before)
			}
			_ = syscall.Kill(writer, syscall.SIGKILL) // ends all processes of the server, which then recovers
			crashed := time.Now()
			var after []string
			eventually(t, "the lost waiters to be queued again", func() bool {
				after = waitingGrants(url)
				return len(after) == 3 && !slices.Contains(after, before[1]) && !slices.Contains(after, before[2])
			})
			t.Logf("all queued again %s after the crash", time.Since(crashed))
			if after[0] != before[0] {
				t.Error("a position was lost although a later grant had flushed it")
			}
			for key, waiters := range map[string][]*app{"line": {first, second}, "kept": {only}} {
				eventually(t, "the release", func() bool {
					return holder.call("DELETE", fmt.Sprintf("%s?token=%d", lockPath(key), tokens[key]), "").status == 200
				})
				for _, w := range waiters {
					next := w.read("PUT", lockPath(key)).granted()
					if next <= tokens[key] {
						t.Errorf("token %d after %d", next, tokens[key])
					}
					tokens[key] = next
					w.release(key, next)
					w.close()
				}
			}
			holder.close()
			nothingLeft(t, url)
		})
	}
}

// TestACrashForgetsReleases: a plain release is not flushed to the disk at once, so a crash can
// lose it. The sidecar repeats it after it reconnects, even if its app has left. So waiters do not
// wait for the end of the lease.
// Proves: promise 4
func TestACrashForgetsReleases(t *testing.T) {
	t.Parallel()
	own := pgtest.Start(t, pgroles.Template(), pgtest.WithSetting("wal_writer_delay", "10s"),
		pgtest.WithSetting("autovacuum", "off"), pgtest.WithSetting("bgwriter_lru_maxpages", "0"))
	url := own.NewDatabase(t)
	o := options{"STORE_URL": url, "TTL": "1h"}
	one, two := start(t, o), start(t, o)
	// The server sometimes flushes by itself. Then the crash loses nothing, and the test repeats
	// it.
	const most = 5
	for n := 0; len(one.logged("had forgotten releases")) == 0; n++ {
		if n == most {
			t.Fatalf("none of %d crashes has lost a release", most)
		}
		crashAfterRelease(t, url, one, two)
		nothingLeft(t, url)
	}
}

// crashAfterRelease makes an app release a lock, and another app leave. The server crashes then. An
// app of another sidecar gets both locks.
func crashAfterRelease(t *testing.T, url string, one, two *sidecar) {
	t.Helper()
	other := dial(t, two.socket)
	defer other.close()
	holder := dial(t, one.socket)
	for _, a := range []*app{other, holder} { // each meets the connections that the crash before has broken
		eventually(t, "a lock after the crash before", func() bool {
			answer := a.call("PUT", lockPath("another"), "")
			if answer.status == 200 {
				a.release("another", answer.granted())
			}
			return answer.status == 200
		})
	}
	token, dropped := holder.acquire("k", ""), holder.acquire("dropped", "")
	writer := pgtest.Query[int](t, url, "SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'")
	if err := syscall.Kill(writer, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	holder.release("k", token)
	holder.close()
	one.await("the release of the connection's lock", func() bool {
		return pgtest.Query[int64](t, url, heldLocks) == 0
	})
	_ = syscall.Kill(writer, syscall.SIGKILL) // ends all processes of the server, which then recovers
	eventually(t, "the server to notice", func() bool { return errors.Is(syscall.Kill(writer, 0), syscall.ESRCH) })
	crashed := time.Now()
	for key, before := range map[string]int64{"k": token, "dropped": dropped} {
		eventually(t, "the key", func() bool {
			answer := other.call("PUT", lockPath(key), "")
			return answer.status == 200 && answer.granted() > before
		})
	}
	t.Logf("free again %s after the crash", time.Since(crashed))
}

// waitingGrants returns the attempt ids of all waiters in order, or none while the server is down.
func waitingGrants(url string) (grants []string) {
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return nil
	}
	defer func() { _ = conn.Close(ctx) }()
	_ = conn.QueryRow(ctx, "SELECT array_agg(attempt_id::text ORDER BY id) FROM locksidecar.waiters").Scan(&grants)
	return grants
}
