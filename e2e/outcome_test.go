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

// skipped checks that a waiter was told that it is done, and with which result.
func (ans answer) skipped(result string) {
	ans.t.Helper()
	ans.want(200, "")
	got, _ := json.Marshal(ans.json["result"])
	if ans.json["granted"] != false || ans.str("outcome") != "success" || string(got) != result {
		ans.t.Fatalf("not skipped with %s: %s", result, ans.body)
	}
}

// TestOutcomes: on success those who asked for it are told the result and the others go on
// in their order; on failure the next has the lock at once. A key of another type for the
// same resource is another lock.
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
		first := apps[0].read("PUT", lockPath("pull:img1")).granted() // it wants it only if nobody did it
		apps[0].releaseWith("pull:img1", first, "&outcome=success", `{"result":{"digest":"sha256:1"}}`)
		for _, i := range []int{2, 4} {
			apps[i].read("PUT", lockPath("pull:img1")).skipped(`{"digest":"sha256:1"}`)
		}
		second := apps[1].read("PUT", lockPath("pull:img1")).granted()
		apps[1].releaseWith("pull:img1", second, "&outcome=success", "") // without a result
		apps[3].release("pull:img1", apps[3].read("PUT", lockPath("pull:img1")).granted())
		// An app that was told may go on, and ask anew.
		apps[2].release("pull:img1", apps[2].acquire("pull:img1", `{"on_success":"skip"}`))
	})
}

// TestSkipIsQuick: two hundred calls behind two sidecars wait for what another one
// does. They hear the result at once, and the database hardly sees it.
func TestSkipIsQuick(t *testing.T) {
	const (
		waiters = 200
		// A release with the marks, a NOTIFY, and for each sidecar a few checks and some
		// statements that take the rows out again, 30 at most on a machine that does nothing
		// else: more on a busy one, where the answers trickle in, but never one for each waiter.
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
		t.Errorf("want within %s", limit)
	}
	if statements > most {
		t.Errorf("want at most %d statements", most)
	}
}

// TestReleaserKilled: a sidecar is killed when its release with an outcome is under way. No
// waiter is lost, whether the release was carried out or not: either it was carried out and
// the waiters hear so, or the lock is the first one's when the lease ends.
func TestReleaserKilled(t *testing.T) {
	t.Parallel()
	const ttl = 4 * time.Second
	for _, stage := range []pgproxy.Stage{pgproxy.BeforeSend, pgproxy.AfterSend, pgproxy.AfterCommandComplete} {
		t.Run(stage.String(), func(t *testing.T) {
			t.Parallel()
			o, url := onPostgres(t)
			proxy := pgproxy.Start(t, url)
			releaser := start(t, o.with(options{"STORE_URL": proxy.URL(), "TTL": ttl.String(), "RENEW_INTERVAL": "500ms"}))
			other := start(t, o.with(options{"RENEW_INTERVAL": "1s"})) // with which it looks for news that nobody told
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
					t.Errorf("waiter %d wants the lock, and was skipped: %s", i, ans.body)
				}
			}
			if fault.Fired() != 1 {
				t.Error("the fault did not happen")
			}
			nothingLeft(t, url)
		})
	}
}

// TestSkippedSidecarKilled: what was left for the waiters of a sidecar that died does
// not stay for ever.
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
	// The key is free all the same.
	next := holder.acquire("job", "")
	two.kill()
	startIn(t, dir, o) // the next one there reaps what that one left
	holder.release("job", next)
	nothingLeft(t, url)
}
