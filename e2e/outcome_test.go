package e2e

import (
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testing/pgproxy"
	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
)

// skipped checks that a waiter was skipped with this result.
func (ans answer) skipped(result string) {
	ans.t.Helper()
	ans.want(200, "")
	got, _ := json.Marshal(ans.json["result"])
	if ans.json["granted"] != false || ans.str("outcome") != "success" || string(got) != result {
		ans.t.Fatalf("not skipped with %s: %s", result, ans.body)
	}
}

// TestOutcomes: on success, skip-waiters get the result, and the other waiters keep their order. On
// failure, the next waiter gets the lock at once. A key of another type for the same resource is
// another lock.
// Proves: promise 15
func TestOutcomes(t *testing.T) {
	t.Parallel()
	stores(t, func(t *testing.T, o options) {
		s := start(t, o.with(options{"POSTGRES_POLL_INTERVAL": noPoll, "TTL": "1h"}))
		holder := dial(t, s.socket)
		token := holder.acquire("pull:img1", "")
		deleter := dial(t, s.socket)
		deleter.release("delete:img1", deleter.acquire("delete:img1", ""))

		var apps []*app
		for i, want := range []string{"skip", "acquire", "skip", "acquire", "skip"} {
			a := dial(t, s.socket)
			a.send("PUT", lockPath("pull:img1"), fmt.Sprintf(`{"wait_ms":-1,"on_success":%q}`, want))
			s.awaitQueue("pull:img1", int64(i+1))
			apps = append(apps, a)
		}
		holder.releaseWith("pull:img1", token, "&outcome=failure", "")
		first := apps[0].read("PUT", lockPath("pull:img1")).granted() // a skip-waiter gets a free lock
		apps[0].releaseWith("pull:img1", first, "&outcome=success", `{"result":{"digest":"sha256:1"}}`)
		for _, i := range []int{2, 4} {
			apps[i].read("PUT", lockPath("pull:img1")).skipped(`{"digest":"sha256:1"}`)
		}
		second := apps[1].read("PUT", lockPath("pull:img1")).granted()
		apps[1].releaseWith("pull:img1", second, "&outcome=success", "") // without a result
		apps[3].release("pull:img1", apps[3].read("PUT", lockPath("pull:img1")).granted())
		// A skipped app may ask again.
		apps[2].release("pull:img1", apps[2].acquire("pull:img1", `{"on_success":"skip"}`))
	})
}

// TestSkipIsQuick: two hundred calls behind two sidecars wait for another one's result. They get it
// at once, with few statements.
// Proves: promise 15
func TestSkipIsQuick(t *testing.T) {
	const (
		waiters = 200
		// A release with its marks, a notification, and for each sidecar a few checks and
		// statements that delete the rows: at most 30 on an idle machine. A busy machine needs
		// more, but not one for each waiter.
		most = waiters / 2
	)
	limit := slowed(50 * time.Millisecond)
	o, url := onPostgres(t)
	o = o.with(options{"POSTGRES_POLL_INTERVAL": noPoll, "TTL": "1h", "LOG_LEVEL": "info"})
	sidecars := []*sidecar{start(t, o), start(t, o)}
	holder := dial(t, sidecars[0].socket)
	token := holder.acquire("pull:img1", "")
	apps := make([]*app, waiters)
	for i := range apps {
		apps[i] = dial(t, sidecars[i%2].socket)
		apps[i].send("PUT", lockPath("pull:img1"), `{"wait_ms":-1,"on_success":"skip"}`)
	}
	queueOf(t, url, waiters)

	cluster.ResetStatements(t, url)
	answers := make([]answer, waiters)
	var wg sync.WaitGroup
	began := time.Now()
	holder.releaseWith("pull:img1", token, "&outcome=success", `{"result":"done"}`)
	for i, a := range apps {
		wg.Go(func() { answers[i] = a.read("PUT", lockPath("pull:img1")) })
	}
	wg.Wait()
	took := time.Since(began)
	for _, ans := range answers {
		ans.skipped(`"done"`)
	}
	nothingLeft(t, url)
	statements := cluster.Statements(t, url, anyStatement)
	t.Logf("%d waiters had the result after %s, with %d statements", waiters, took.Round(time.Millisecond), statements)
	if took > limit {
		t.Errorf("want at most %s", limit)
	}
	if statements > most {
		t.Errorf("want at most %d statements", most)
	}
}

// TestReleaserKilled: a sidecar is killed during its release with an outcome. No waiter is lost:
// either the release was carried out and the waiters are notified, or the first waiter gets the
// lock at the end of the lease.
// Proves: promise 15
func TestReleaserKilled(t *testing.T) {
	t.Parallel()
	const ttl = 4 * time.Second
	for _, stage := range []pgproxy.Stage{pgproxy.BeforeSend, pgproxy.AfterSend, pgproxy.AfterCommandComplete} {
		t.Run(stage.String(), func(t *testing.T) {
			t.Parallel()
			o, url := onPostgres(t)
			proxy := pgproxy.Start(t, url)
			releaser := start(t, o.with(options{"STORE_URL": proxy.URL(), "TTL": ttl.String(), "RENEW_INTERVAL": "500ms"}))
			other := start(t, o.with(options{"RENEW_INTERVAL": "1s"})) // a renewal finds news that was not sent
			holder := dial(t, releaser.socket)
			token := holder.acquire("job", "")
			var apps []*app
			for i, want := range []string{"skip", "acquire", "skip", "acquire"} {
				a := dial(t, other.socket)
				a.send("PUT", lockPath("job"), fmt.Sprintf(`{"wait_ms":-1,"on_success":%q}`, want))
				other.awaitQueue("job", int64(i+1))
				apps = append(apps, a)
			}
			fault := proxy.Cut(pgproxy.Cut{Statement: "release", Stage: stage, Do: func() { _ = releaser.cmd.Process.Kill() }})
			holder.send("DELETE", fmt.Sprintf("%s?token=%d&outcome=success", lockPath("job"), token), `{"result":1}`)
			for i, a := range apps {
				ans := a.read("PUT", lockPath("job"))
				if ans.json["granted"] == true {
					a.release("job", ans.granted())
					continue
				}
				if ans.skipped("1"); i == 1 || i == 3 {
					t.Errorf("waiter %d wants the lock, but was skipped: %s", i, ans.body)
				}
			}
			if fault.Fired() != 1 {
				t.Error("the fault did not happen")
			}
			nothingLeft(t, url)
		})
	}
}

// TestSkippedSidecarKilled: the skips of a dead sidecar's waiters are deleted.
// Proves: promise 15
func TestSkippedSidecarKilled(t *testing.T) {
	t.Parallel()
	o, url := onPostgres(t)
	o = o.with(options{"TTL": "1h"})
	dir := folder(t)
	one, two := start(t, o), startIn(t, dir, o)
	holder := dial(t, one.socket)
	token := holder.acquire("job", "")
	skips := dial(t, two.socket)
	skips.send("PUT", lockPath("job"), `{"wait_ms":-1,"on_success":"skip"}`)
	one.awaitQueue("job", 1)
	two.signal(stopSignal)
	holder.releaseWith("job", token, "&outcome=success", "")
	if n := pgtest.Query[int64](t, url, "SELECT count(*) FROM locksidecar.waiters WHERE outcome = 'success'"); n != 1 {
		t.Errorf("%d waiters are marked, want 1", n)
	}
	// The key is free although these rows remain.
	next := holder.acquire("job", "")
	two.kill()
	startIn(t, dir, o) // the successor in this folder reaps the first one's leases
	holder.release("job", next)
	nothingLeft(t, url)
}
