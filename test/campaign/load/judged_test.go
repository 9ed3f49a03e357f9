package load

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/locksidecar/locksidecar/internal/testing/etcdtest"
	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
	"github.com/locksidecar/locksidecar/test/campaign/check"
	"github.com/locksidecar/locksidecar/test/campaign/history"
	"github.com/locksidecar/locksidecar/test/campaign/stored"
)

// TestJudged: without faults, the checkers accept the history of the clients of two sidecars, of which one keeps keys, and it
// contains enough to judge.
func TestJudged(t *testing.T) {
	const keys = 12
	store, dir := cluster.NewDatabase(t), folder(t)
	sockets := []string{filepath.Join(dir, "a.sock"), filepath.Join(dir, "b.sock")}
	const keeps = 200 * time.Millisecond
	start(t, sockets[0], store, "LOCKSIDECAR_KEEP="+keeps.String())
	start(t, sockets[1], store)
	rec := history.NewRecorder("load", nil)
	now := history.Now()
	rec.Add(history.Op{Kind: history.Keeps, Sidecar: 0, Call: now, Until: now + int64(keeps)})
	rules := check.DefaultRules()
	rules.Least = check.Counts{
		Grants: 100, Waited: 50, Unknown: 10, Drops: 50, Searched: 5, Ordered: 200, Turns: 200, HandedOn: 20, HandOffs: 10, Kept: 100, Recalled: 3,
		Shares: 50, Full: 10, Downgrades: 2, Mismatches: 2, Counted: 5, Rooms: 10,
	}
	ctx, cancel := context.WithCancel(context.Background())
	fence, contend := fence(t, keys), make(chan struct{})
	var wg sync.WaitGroup
	defer func() { cancel(); wg.Wait() }()
	wg.Go(func() { Observe(ctx, stored.Postgres(store), 20*time.Millisecond, rec) })
	wg.Go(func() {
		if err := Run(ctx, Config{
			Sockets: sockets, Clients: 48, Keys: keys, Seed: 2, Recorder: rec, TTL: testTTL, Fence: fence, Contend: contend,
		}); err != nil {
			t.Error(err)
		}
	})
	keeper := &Keeper{Recorder: rec, Sidecar: 0, Socket: sockets[0], Key: "judged:kept"}
	other := &Keeper{Recorder: rec, Sidecar: 1, Socket: sockets[1], Key: keeper.Key}
	wg.Go(func() { Recalls(ctx, keeper, other, rules.Least.Kept) })
	traffic := func(least check.Counts) { // more only where the machine is slow
		rules := rules
		rules.Least = least
		<-time.After(5 * time.Second)
		for end := time.Now().Add(2 * longest); time.Now().Before(end); <-time.After(time.Second) {
			if ops, err := rec.Ops(); err != nil || check.Enough(ops, rules) {
				break
			}
		}
	}
	traffic(check.Counts{Downgrades: rules.Least.Downgrades, Mismatches: rules.Least.Mismatches, Counted: rules.Least.Counted, Rooms: rules.Least.Rooms})
	close(contend) // from now on, hardly anybody has to wait for a share
	traffic(rules.Least)
	cancel()
	wg.Wait()
	ops, err := rec.Ops()
	if err != nil {
		t.Fatal(err)
	}
	report := check.All(ops, rules)
	t.Logf("%+v %v", report.Counts, outcomes(ops))
	if err := report.Err(); err != nil {
		t.Errorf("%v\nthe history: %s", err, keep(t, ops, rules, report))
	}
	if err := EveryKey(context.Background(), sockets[0], keys, longest); err != nil {
		t.Error(err)
	}
	left, err := check.Orphans(context.Background(), stored.Postgres(store), []string{pod}, longest)
	if err != nil || len(left) > 0 {
		t.Errorf("%v %v", left, err)
	}
}

// TestObservedLine: a line shows the attempt that has the key, and the attempts that wait.
func TestObservedLine(t *testing.T) {
	store, socket := cluster.NewDatabase(t), filepath.Join(folder(t), "s.sock")
	start(t, socket, store, "LOCKSIDECAR_TTL=1h")
	c, err := dial(context.Background(), socket)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if a, err := c.call(context.Background(), patience, "PUT", lockPath("k"), "{}"); err != nil || a.status != 200 {
		t.Fatal(a, err)
	}
	_ = pgtest.Query[int64](t, store, `WITH w AS (INSERT INTO locksidecar.waiters (attempt_id, namespace, key, lease_id, data)
		SELECT gen_random_uuid(), 'default', 'k', lease_id, '{"op":"x"}' FROM locksidecar.locks, generate_series(1, 2) WHERE key = 'k' RETURNING 1)
		SELECT count(*) FROM w`)
	rec := history.NewRecorder("load", nil)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	defer func() { cancel(); wg.Wait() }()
	wg.Go(func() { Observe(ctx, stored.Postgres(store), time.Millisecond, rec) })
	var lines []history.Op
	until(t, "a line", func() bool {
		ops, err := rec.Ops()
		if err != nil {
			t.Fatal(err)
		}
		lines = slices.DeleteFunc(ops, func(op history.Op) bool { return op.Kind != history.Line })
		return len(lines) > 0
	})
	if len(lines) == 0 {
		return
	}
	got := fmt.Sprint(lines[0].Key, lines[0].Token, lines[0].Attempt)
	want := pgtest.Query[string](t, store, `SELECT key || token || attempt_id FROM locksidecar.locks WHERE key = 'k'`)
	for _, place := range lines[0].Line {
		got += fmt.Sprint(place.Number, place.ID, place.Lease, place.Attempt)
	}
	want += pgtest.Query[string](t, store, `SELECT string_agg(id || 'x' || lease_id || attempt_id, '' ORDER BY id) FROM locksidecar.waiters`)
	if got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
}

// keep leaves a history for people.
func keep(t *testing.T, ops []history.Op, rules check.Rules, report check.Report) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "locksidecar-history-")
	if err != nil {
		t.Fatal(err)
	}
	for name, write := range map[string]func(f *os.File) error{
		"history.jsonl": func(f *os.File) error { return history.WriteAll(f, ops) },
		"history.html":  func(f *os.File) error { return check.HTML(f, ops, rules, report.Violations) },
	} {
		f, err := os.Create(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := write(f); err != nil {
			t.Error(err)
		}
		_ = f.Close()
	}
	return dir
}

// TestOrphans: what a client left behind is found, and is gone when its lease is.
func TestOrphans(t *testing.T) {
	store, socket := cluster.NewDatabase(t), filepath.Join(folder(t), "s.sock")
	start(t, socket, store, "LOCKSIDECAR_TTL=1h") // nothing ends before its time
	pods := []string{pod}
	c, err := dial(context.Background(), socket)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	found := func(what string, want int) {
		t.Helper()
		if left, err := check.Orphans(context.Background(), stored.Postgres(store), pods, 0); err != nil || len(left) != want {
			t.Errorf("%s: found %v, %v, want %d", what, left, err, want)
		}
	}
	for key, body := range map[string]string{"session": `{}`, "ttl": `{"bind":"ttl","ttl_ms":3600000}`, "shared": `{"mode":"shared"}`} {
		if a, err := c.call(context.Background(), patience, "PUT", lockPath(key), body); err != nil || a.status != 200 {
			t.Fatal(a, err)
		}
	}
	found("two locks, a share, and a lease of a lock", 4)
	_ = pgtest.Query[int64](t, store, `WITH w AS (INSERT INTO locksidecar.waiters (attempt_id, namespace, key, lease_id)
		SELECT gen_random_uuid(), 'default', 'other', lease_id FROM locksidecar.locks WHERE key = 'session' RETURNING 1) SELECT count(*) FROM w`)
	found("a waiter, too", 5)
	_ = c.Close()
	_ = pgtest.Query[int64](t, store, `WITH w AS (DELETE FROM locksidecar.waiters RETURNING 1) SELECT count(*) FROM w`)
	_ = pgtest.Query[int64](t, store, `WITH l AS (UPDATE locksidecar.leases SET expires_at = clock_timestamp() WHERE NOT renewed RETURNING 1)
		SELECT count(*) FROM l`)
	if left, err := check.Orphans(context.Background(), stored.Postgres(store), pods, longest); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// TestWhatEtcdHolds: the same as TestOrphans and TestObservedLine on etcd: what clients hold and wait for is seen, in order,
// and is gone when they are.
func TestWhatEtcdHolds(t *testing.T) {
	servers, socket := etcdtest.Start(t), filepath.Join(folder(t), "s.sock")
	start(t, socket, "etcd://"+servers.Addresses()+"/load", "LOCKSIDECAR_TTL=1h") // nothing ends before its time
	view := stored.Etcd(func() (*clientv3.Client, error) { return servers.Connect() }, "/load")
	defer view.Close()
	session := func() *conn {
		c, err := dial(t.Context(), socket)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	got := func(c *conn, method, path, body string) answer {
		t.Helper()
		a, err := c.call(t.Context(), patience, method, path, body)
		if err != nil || a.status != 200 {
			t.Fatal(a, err)
		}
		return a
	}
	left := func(want int) bool {
		found, err := view.Left(t.Context(), []string{pod})
		return err == nil && len(found) == want
	}
	c := session()
	token := got(c, "PUT", lockPath("session"), "{}").Token
	ttl := got(c, "PUT", lockPath("ttl"), `{"bind":"ttl","ttl_ms":3600000}`).Token
	got(c, "PUT", lockPath("shared"), `{"mode":"shared"}`)
	until(t, "two locks, a share, and a lease of a lock", func() bool { return left(4) })
	if found, err := view.Left(t.Context(), nil); err != nil || len(found) != 5 {
		t.Errorf("a lease of an unknown pod is not found: %v, %v", found, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var waiting sync.WaitGroup
	for i, id := range []string{"first", "second"} {
		waiter := session()
		waiting.Go(func() {
			_, _ = waiter.call(ctx, longest, "PUT", lockPath("session"), `{"wait_ms":-1,"data":{"op":"`+id+`"}}`)
			_ = waiter.Close()
		})
		until(t, id, func() bool { return left(5 + i) })
	}
	lines, err := view.Lines(t.Context())
	if err != nil || len(lines) != 1 || lines[0].Key != "session" || lines[0].Token != token || lines[0].Holders != 1 || len(lines[0].Line) != 2 ||
		lines[0].Line[0].ID != "first" || lines[0].Line[1].ID != "second" || lines[0].Line[0].Number >= lines[0].Line[1].Number || lines[0].Line[0].Dead {
		t.Errorf("lines: %+v, %v", lines, err)
	}
	cancel()
	waiting.Wait()
	got(c, "DELETE", fmt.Sprintf("%s?token=%d", lockPath("ttl"), ttl), "")
	_ = c.Close()
	until(t, "nothing is left", func() bool { return left(0) })
	if t.Failed() {
		found, err := view.Left(t.Context(), []string{pod})
		t.Log(found, err)
	}
}
