package e2e

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testing/pace"
	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
	"github.com/locksidecar/locksidecar/internal/testing/pgtest/pgroles"
)

// TestAStoreThatHangs: the servers of a store are stopped by SIGSTOP, so their connections stay open and nothing answers. Each call
// is told that the store is unavailable, and to try again. Its connection and its session go on, and keep what they hold.
// `run --again` goes on, too.
// Proves: promise 9
func TestAStoreThatHangs(t *testing.T) {
	t.Parallel()
	for name, on := range map[string]func(t *testing.T) (o options, freeze, thaw func()){
		"postgres": func(t *testing.T) (options, func(), func()) {
			own := pgtest.Start(t, pgroles.Template())
			var thaw func()
			return options{"STORE_URL": own.NewDatabase(t)}, func() { thaw, _ = own.Freeze() }, func() { thaw() }
		},
		"etcd": func(t *testing.T) (options, func(), func()) {
			o, c := onEtcd(t)
			return o, c.Nodes[0].Freeze, c.Nodes[0].Thaw
		},
		"mysql": func(t *testing.T) (options, func(), func()) {
			o, d := onMySQL(t)
			return o, d.Server.Freeze, d.Server.Thaw
		},
		"redis": func(t *testing.T) (options, func(), func()) {
			o, s := onRedis(t)
			return o.with(options{"FAILOVER": "quick"}), s.Freeze, s.Thaw
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o, freeze, thaw := on(t)
			aStoreThatHangs(t, start(t, o.with(options{"STORE_TIMEOUT": "1s", "TTL": "1h"})), freeze, thaw)
		})
	}
}

func aStoreThatHangs(t *testing.T, s *sidecar, freeze, thaw func()) {
	t.Helper()
	machine := pace.Start(t)
	session := openSession(t, s.socket, "")
	joined, plain := dial(t, s.socket), dial(t, s.socket)
	kept, own := s.granted(t, joined, "kept", "", session.joins()), plain.acquire("own", "")
	freeze()
	t.Cleanup(thaw)

	candidate := startRun(t, s, "elected", "--again", "--ttl", "7s", "--", "echo", "ran")
	var calls sync.WaitGroup
	for n, members := range []string{
		`"ttl_ms":3600000`, `"ttl_ms":61000`, `"ttl_ms":122000,"wait_ms":30000`, `"ttl_ms":183000,"wait_ms":-1`,
		`"bind":"ttl","ttl_ms":64000`, `"bind":"ttl","ttl_ms":64000,"wait_ms":-1`, `"ttl_ms":301000,"mode":"shared"`,
		`"ttl_ms":602000,"mode":"shared","wait_ms":-1`,
	} {
		for _, headers := range [][]string{nil, {session.joins()}} {
			for method, call := range map[string][2]string{
				"PUT":  {lockPath(fmt.Sprint("free:", n)), "{" + members + "}"},
				"POST": {"/v1/locks", fmt.Sprintf(`{"keys":["free:%d","more:%d"],%s}`, n, n, members)},
			} {
				calls.Go(func() {
					a := dial(t, s.socket)
					for range 2 { // the connection goes on
						began := time.Now()
						ans := a.call(method, call[0], call[1], headers...)
						// The limit is 1.1 s; statement after statement would take 3 s.
						took, slow := time.Since(began), machine.Since(began)
						if took > 2500*time.Millisecond+slow && !strings.Contains(members, "wait_ms") {
							t.Errorf("%s %s: answered after %s, on a machine that was %s slow", method, call, took, slow)
						}
						if ans.status != 503 || ans.str("code") != "store_unavailable" || ans.header.Get("Retry-After") == "" {
							t.Errorf("%s %s: %d %s", method, call, ans.status, ans.body)
						}
					}
				})
			}
		}
	}
	calls.Wait()
	stream, status := tryStream(t, s.socket, "GET", lockPath("watched")+"/events", "")
	if status == 200 { // the head did not wait
		if e := stream.next(); e.name != "problem" || e.data["code"] != "store_unavailable" {
			t.Errorf("the events of a key: %s %s", e.name, e.raw)
		}
	} else if status != 503 {
		t.Errorf("the events of a key: %d", status)
	}
	candidate.says("trying again")

	thaw()
	s.await("ready again", s.tryReady)
	candidate.says("ran")
	candidate.want(0)
	if view := joined.call("GET", lockPath("kept"), "", session.joins()); view.json["mine"] != true {
		t.Errorf("after the hang: %s", view.body)
	}
	eventually(t, "a release", func() bool {
		return plain.call("DELETE", fmt.Sprintf("%s?token=%d", lockPath("own"), own), "").status != 503
	})
	joined.release("kept", kept, session.joins())
	select {
	case e := <-session.events:
		t.Errorf("the session's event is %s %s", e.name, e.raw)
	default:
	}
	if len(s.logged(`caller_left`)) > 0 {
		t.Errorf("a call was counted as left:\n%s", s.log.tail(20))
	}
}
