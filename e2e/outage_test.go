package e2e

import (
	"context"
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

// load is clients that acquire and release a few keys, through outages too.
type load struct {
	t       *testing.T
	r       *register
	refused atomic.Int64
	end     atomic.Bool
	wg      sync.WaitGroup
}

const loadKeys = 5

// underLoad starts clients behind each of the sidecars.
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

// release tries until the answer is known; at the end of the load once more, for the
// test wants to see nothing left.
func (l *load) release(a *app, key string, token int64) {
	for last := false; !last; {
		last = l.end.Load()
		ans := a.call("DELETE", fmt.Sprintf("%s?token=%d", lockPath(key), token), "")
		if ans.status != 503 {
			return // released now, by an attempt before, or with the lease
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
	time.Sleep(20 * time.Millisecond) // a client that is told to retry later
}

// goesOn waits for so many more grants.
func (l *load) goesOn(more int64) {
	l.t.Helper()
	want := l.r.grants.Load() + more
	eventually(l.t, fmt.Sprint(more, " more grants"), func() bool { return l.r.grants.Load() >= want })
}

// TestDatabaseKilled: PostgreSQL is killed under load and comes back within the TTL:
// what was held is held, who waited waits, and clients go on by themselves.
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
	for range 2 { // the second time the sidecars have a recovery behind them
		l.goesOn(50)
		own.Kill()
		refused := l.refused.Load()
		eventually(t, "the outage to be told", func() bool { return l.refused.Load() >= refused+20 })
		for _, s := range []*sidecar{one, two} {
			ans := dial(t, s.socket).call("PUT", lockPath("new"), "").want(503, "store_unavailable")
			if ans.header.Get("Retry-After") == "" {
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
		t.Errorf("the session was told %s %s", e.name, e.raw)
	default:
	}
	nothingLeft(t, url)
	t.Logf("%d grants, %d refusals", l.r.grants.Load(), l.refused.Load())
}

// TestDatabaseGoneForLong: an outage longer than the TTL costs the locks, at their
// deadline and not before.
func TestDatabaseGoneForLong(t *testing.T) {
	t.Parallel()
	const ttl = 5 * time.Second
	own := pgtest.Start(t, pgroles.Template())
	url := own.NewDatabase(t)
	o := options{"STORE_URL": url, "TTL": ttl.String(), "RENEW_INTERVAL": "1s"}
	one, two := start(t, o), start(t, o)
	session := openSession(t, one.socket, "")
	holder, plain, waiter := dial(t, one.socket), dial(t, one.socket), dial(t, two.socket)
	token := holder.acquire("gone", "", session.joins())
	other := plain.acquire("other", "")
	waiter.send("PUT", lockPath("gone"), `{"wait_ms":-1}`)
	one.awaitQueue("gone", 1)

	own.Kill()
	killed, seen := time.Now(), 0
	for {
		asked := time.Since(killed)
		if view := holder.call("GET", lockPath("gone"), "", session.joins()); view.json["mine"] != true {
			break
		}
		if seen++; asked > ttl {
			t.Fatalf("still held %s after the database was killed", asked)
		}
		time.Sleep(5 * time.Millisecond) // the pause of a poll
	}
	// At worst the kill came just before a renewal was due, which may be late on a busy machine.
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
	own.Restart(t)
	one.await("ready again", one.tryReady)
	// A wait lasts as long as its lease, or longer if the database is back by then.
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
	nothingLeft(t, url)
}

// TestACrashForgetsPlaces: who only stands in line is not flushed to the disk by itself, so
// a crash can forget it, and nothing before it. It stands in line again, by news of the
// connection that listens, or where there is none when it looks: no renewal comes here.
func TestACrashForgetsPlaces(t *testing.T) {
	t.Parallel()
	// Nothing but the statements here flushes: the server does nothing by itself.
	own := pgtest.Start(t, pgroles.Template(), pgtest.WithSetting("autovacuum", "off"), pgtest.WithSetting("bgwriter_lru_maxpages", "0"))
	for name, o := range map[string]options{"listening": {}, "polling": {"POSTGRES_LISTEN": "never"}} {
		t.Run(name, func(t *testing.T) {
			url := own.NewDatabase(t)
			o = o.with(options{"STORE_URL": url, "TTL": "1h"})
			one, two := start(t, o), start(t, o)
			holder := dial(t, one.socket)
			tokens := map[string]int64{"kept": holder.acquire("kept", ""), "line": holder.acquire("line", "")}
			// The first writes what is not told before it is flushed, in an order that is its
			// own; nothing else here flushes, once it is stopped.
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
			holder.acquire("another", "") // its commit takes along what was before
			second, only := wait("line", 1), wait("kept", 0)
			before := waitingGrants(url)
			if len(before) != 3 {
				t.Fatalf("in line: %v", before)
			}
			_ = syscall.Kill(writer, syscall.SIGKILL) // the server ends all other processes, and recovers
			crashed := time.Now()
			var after []string
			eventually(t, "those whose places were forgotten to stand in line again", func() bool {
				after = waitingGrants(url)
				return len(after) == 3 && !slices.Contains(after, before[1]) && !slices.Contains(after, before[2])
			})
			t.Logf("all in line again %s after the crash", time.Since(crashed))
			if after[0] != before[0] {
				t.Error("a place was forgotten that a later grant had made durable")
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

// TestACrashForgetsReleases: a release that hands nothing over is not flushed to the disk by itself, so a
// crash can forget it. The sidecar repeats it when it is connected again, though its app has left: nobody
// waits for the end of the lease.
func TestACrashForgetsReleases(t *testing.T) {
	t.Parallel()
	own := pgtest.Start(t, pgroles.Template(), pgtest.WithSetting("wal_writer_delay", "10s"),
		pgtest.WithSetting("autovacuum", "off"), pgtest.WithSetting("bgwriter_lru_maxpages", "0"))
	url := own.NewDatabase(t)
	o := options{"STORE_URL": url, "TTL": "1h"}
	one, two := start(t, o), start(t, o)
	// The server writes by itself at times, and flushes what came before. Then a crash has nothing to forget.
	const most = 5
	for n := 0; len(one.logged("releases were repeated")) == 0; n++ {
		if n == most {
			t.Fatalf("none of %d crashes has forgotten a release", most)
		}
		crashAfterRelease(t, url, one, two)
		nothingLeft(t, url)
	}
}

// crashAfterRelease has one app release a lock and leave with another. The server crashes then, and an app of
// another sidecar gets both.
func crashAfterRelease(t *testing.T, url string, one, two *sidecar) {
	t.Helper()
	other := dial(t, two.socket)
	defer other.close()
	other.release("another", other.acquire("another", ""))
	holder := dial(t, one.socket)
	token, dropped := holder.acquire("k", ""), holder.acquire("dropped", "")
	writer := pgtest.Query[int](t, url, "SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'")
	if err := syscall.Kill(writer, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	holder.release("k", token)
	holder.close()
	one.await("the release of what the connection held", func() bool {
		return pgtest.Query[int64](t, url, heldLocks) == 0
	})
	_ = syscall.Kill(writer, syscall.SIGKILL) // the server ends all other processes, and recovers
	crashed := time.Now()
	for key, before := range map[string]int64{"k": token, "dropped": dropped} {
		eventually(t, "the key", func() bool {
			answer := other.call("PUT", lockPath(key), "")
			return answer.status == 200 && answer.granted() > before
		})
	}
	t.Logf("free again %s after the crash", time.Since(crashed))
}

// waitingGrants are the attempt ids of all who wait, by their order; nobody's while the server is away.
func waitingGrants(url string) (grants []string) {
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return nil
	}
	defer func() { _ = conn.Close(ctx) }()
	_ = conn.QueryRow(ctx, "SELECT array_agg(grant_id::text ORDER BY id) FROM locksidecar.waiters").Scan(&grants)
	return grants
}
