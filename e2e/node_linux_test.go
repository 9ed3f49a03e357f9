package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
	"github.com/locksidecar/locksidecar/internal/testing/pgtest/pgroles"
)

// lockServer is a running `locksidecar node`.
type lockServer struct {
	*sidecar
	admin string
}

// rooted starts the parts of a node: a plugin, and a server on its folder.
func rooted(t *testing.T, o options) (*plugin, *lockServer) {
	t.Helper()
	p := startPlugin(t, nodeFolder(t), patience)
	return p, startNode(t, p, o)
}

// nodeFolder is a folder that the server's user may enter, as it may execute the binary.
func nodeFolder(t *testing.T) string {
	t.Helper()
	dir := folder(t)
	for _, path := range []string{dir, filepath.Dir(binary)} {
		if err := os.Chmod(path, 0o711); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// startNode starts a lock server, as the user without rights that it has on a node, and waits until it serves all pods.
func startNode(t *testing.T, p *plugin, o options, env ...string) *lockServer {
	t.Helper()
	s := launchNode(t, p, o, env...)
	s.await("the lock server", func() bool { return strings.Contains(s.log.String(), `"msg":"ready"`) })
	return s
}

func launchNode(t *testing.T, p *plugin, o options, env ...string) *lockServer {
	t.Helper()
	admin := freeAddress(t)
	s := &lockServer{&sidecar{t: t, log: &logBuffer{}, ended: make(chan struct{}), socket: string(p.folder())}, admin}
	s.cmd = exec.Command(binary, "node")
	s.cmd.Env = append(cleanEnv(), "LOCKSIDECAR_LOG_LEVEL=debug", "LOCKSIDECAR_NODE_FOLDER="+string(p.folder()), "LOCKSIDECAR_ADMIN_ADDR="+admin)
	s.cmd.Env = append(s.cmd.Env, env...)
	for name, value := range o {
		s.cmd.Env = append(s.cmd.Env, "LOCKSIDECAR_"+name+"="+value)
	}
	s.cmd.Stdout, s.cmd.Stderr = s.log, s.log
	if os.Geteuid() == 0 {
		admit(t, o["STORE_URL"])
		s.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(p.user), Gid: uint32(p.user)}}
	}
	s.run()
	return s
}

// servers runs a test on each store that several processes share.
func servers(t *testing.T, test func(t *testing.T, o options)) {
	t.Helper()
	stores(t, func(t *testing.T, o options) {
		if o["STORE_URL"] == "memory://" {
			t.Skip("two processes have no locks in common")
		}
		test(t, o)
	})
}

// admit lets the server's user reach the database's socket.
func admit(t *testing.T, storeURL string) {
	t.Helper()
	if db, err := url.Parse(storeURL); err == nil && db.Query().Get("host") != "" {
		if err := os.Chmod(db.Query().Get("host"), 0o711); err != nil {
			t.Fatal(err)
		}
	}
}

// freeAddress is a loopback address that nobody listens at.
func freeAddress(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	return ln.Addr().String()
}

// socket is the path of the pod's socket through its mount. It is short, as paths of sockets must be.
func (v podVolume) socket() string {
	v.p.t.Helper()
	dir, err := os.Open(v.mounted())
	if err != nil {
		v.p.t.Fatal(err)
	}
	v.p.t.Cleanup(func() { _ = dir.Close() })
	return fmt.Sprintf("/proc/self/fd/%d/locksidecar.sock", dir.Fd())
}

// direct is the path of the pod's socket without its mount, for another process.
func (v podVolume) direct() string { return v.p.folder().Socket(v.key()) }

func (v podVolume) app() *app {
	v.p.t.Helper()
	return dial(v.p.t, v.socket())
}

func (s *lockServer) get(path string) (status int, body string) {
	s.t.Helper()
	res, err := http.Get("http://" + s.admin + path)
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return res.StatusCode, string(text)
}

// TestNodeKeepsPodsApart: pods of two namespaces hold the same key. Neither sees or breaks the other's locks. When a volume is unpublished, the locks of
// its pod are free, and no others.
// Proves: threat other pod
func TestNodeKeepsPodsApart(t *testing.T) {
	t.Parallel()
	stores(t, func(t *testing.T, o options) {
		p, s := rooted(t, o.with(options{"TTL": "60s", "DRAIN_TIMEOUT": "1s"}))
		web, next, pay := p.volume("shop", "web-0"), p.volume("shop", "web-1"), p.volume("pay", "web-0")
		for _, v := range []podVolume{web, next, pay} {
			v.publish()
		}
		a, b, c := web.app(), next.app(), pay.app()
		a.acquire("job", `{"data":"of-shop"}`)
		theirs := c.acquire("job", `{"data":"of-pay"}`)
		held := b.call("PUT", lockPath("job"), "").want(423, "held")
		if holder := held.json["holder"].(map[string]any); holder["pod"] != "web-0" || holder["data"] != "of-shop" {
			t.Errorf("holder: %v", holder)
		}
		for _, call := range []struct{ method, path string }{
			{"GET", "/v1/locks?namespace=pay"},
			{"GET", "/v1/waiters?namespace=pay"},
			{"GET", "/v1/stats"},
			{"DELETE", lockPath("job") + "?force=true"},
		} {
			b.call(call.method, call.path, "").want(403, "forbidden")
		}
		b.call("GET", "/metrics", "").want(404, "not_found")
		for _, path := range []string{"/v1/locks", "/v1/locks?namespace=shop", "/v1/waiters", "/readyz", "/v1"} {
			if ans := b.call("GET", path, "").want(200, ""); strings.Contains(string(ans.body), "pay") {
				t.Errorf("%s shows another namespace: %s", path, ans.body)
			}
		}
		if status, body := s.get("/metrics"); status != 200 || !strings.Contains(body, `locksidecar_locks_held{mode="exclusive",type="_none"} 2`) || !strings.Contains(body, "locksidecar_connections 3") {
			t.Errorf("metrics of the node: %d\n%s", status, body)
		}

		web.unpublish()
		web.leavesNothing()
		b.acquire("job", `{"wait_ms":10000}`, "Cache-Control: no-cache")
		c.call("PATCH", lockPath("job"), fmt.Sprintf(`{"token":%d}`, theirs)).want(200, "")
		if _, err := a.tryRead("GET", "/v1"); err == nil {
			t.Error("the connection of the unpublished pod is open")
		}
		// The socket is every user's, because a pod's users may be mapped.
		if info, err := os.Stat(next.mounted() + "/locksidecar.sock"); err != nil || info.Mode().Perm() != 0o666 {
			t.Errorf("%v, %v", info, err)
		}
		// Without a successor, a stop waits for held locks.
		b.close()
		c.close()
		if code := s.stop(); code != 0 {
			t.Errorf("exit code %d", code)
		}
	})
}

// TestNodePolicy: the policy maps namespaces, and gives rights to the pods of a service account.
func TestNodePolicy(t *testing.T) {
	t.Parallel()
	dir := nodeFolder(t)
	policy := dir + "/policy.yaml"
	write := func(text string) {
		if err := os.WriteFile(policy, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("namespaces: {shop-canary: shop}\nserviceAccounts:\n- {namespace: ops, name: default, force: true}\n")
	p := startPlugin(t, dir, patience)
	o := options{"STORE_URL": "memory://", "NODE_POLICY_FILE": policy}
	s := startNode(t, p, o)
	shop, canary, ops := p.volume("shop", "a"), p.volume("shop-canary", "b"), p.volume("ops", "c")
	for _, v := range []podVolume{shop, canary, ops} {
		v.publish()
	}
	shop.app().acquire("job", "")
	canary.app().call("PUT", lockPath("job"), "").want(423, "held")
	holder := ops.app()
	holder.acquire("job", "")
	ops.app().call("DELETE", lockPath("job")+"?force=true", "").want(200, "")
	shop.app().call("DELETE", lockPath("job")+"?force=true", "").want(403, "forbidden")
	s.kill()
	write("namespaces: {shop: ''}\nserviceAccounts: [{name: x}]\n")
	bad := launchNode(t, p, o)
	if code := bad.wait(); code != 78 || !strings.Contains(bad.log.String(), "LOCKSIDECAR_NODE_POLICY_FILE") || !strings.Contains(bad.log.String(), "serviceAccounts[0]") {
		t.Errorf("exit code %d: %s", code, bad.log)
	}
}

// TestNodeShowsOtherNamespaces: the policy lets the pods of a service account see the counts of all namespaces, and their locks if the store's role may only read. So the console at such a
// pod's socket shows them. At any other pod's, it shows the pod's namespace alone.
// Proves: threat other pod, threat other namespace
func TestNodeShowsOtherNamespaces(t *testing.T) {
	t.Parallel()
	dir := nodeFolder(t)
	policy := dir + "/policy.yaml"
	if err := os.WriteFile(policy, []byte("serviceAccounts:\n- {namespace: ops, name: default, otherNamespaces: true}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	database := ownServer(t)
	makeRoles(t, database)
	if out, err := migrateAs(t, pgroles.Migrator, database); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	runScript(t, pgtest.As(database, pgroles.Admin))
	p := startPlugin(t, dir, patience)
	o := options{"STORE_URL": pgtest.As(database, pgroles.Sidecar), "AUTO_MIGRATE": "false", "NODE_POLICY_FILE": policy}
	startNode(t, p, o)
	shop, ops := p.volume("shop", "web"), p.volume("ops", "admin")
	shop.publish()
	ops.publish()
	shop.app().acquire("of-shop:1", "")
	ops.app().acquire("of-ops:1", "")

	counts := ops.app().call("GET", "/v1/stats?scope=database", "").want(200, "")
	if text := string(counts.body); !strings.Contains(text, "of-shop") || !strings.Contains(text, "of-ops") {
		t.Errorf("counted: %s", text)
	}
	ops.app().call("GET", "/v1/locks?namespace=shop", "").want(501, "unsupported") // the role may grant
	shop.app().call("GET", "/v1/stats", "").want(403, "forbidden")
	shop.app().call("GET", "/v1/locks?namespace=ops", "").want(403, "forbidden")

	shows := func(v podVolume, path string, status int, texts ...string) (shown string) {
		t.Helper()
		got, shown := openPage(t, startConsole(t, v.direct()), path)
		if got != status {
			t.Errorf("%s at the socket of %s: %d %s", path, v.namespace, got, shown)
		}
		for _, text := range texts {
			if !strings.Contains(shown, text) {
				t.Errorf("%s at the socket of %s does not show %q: %s", path, v.namespace, text, shown)
			}
		}
		return shown
	}
	shows(ops, "/", 200, "of-ops:1")
	shows(ops, "/totals", 200, "of-ops", "of-shop")
	for path, status := range map[string]int{"/": 200, "/waits": 200, "/sidecars": 200, "/totals": 503, "/n/ops/": 503} {
		if shown := shows(shop, path, status); strings.Contains(shown, "of-ops") || strings.Contains(shown, "admin") {
			t.Errorf("%s at the socket of shop shows another namespace: %s", path, shown)
		}
	}
	shows(shop, "/", 200, "of-shop:1")
	shows(shop, "/totals", 503, "its own namespace only")

	// A lock server whose role may only read grants nothing, and shows the locks of all. So it has a folder of its own.
	beside := startPlugin(t, nodeFolder(t), patience)
	startNode(t, beside, o.with(options{"STORE_URL": pgtest.As(database, pgroles.Reader)}))
	sees, blind := beside.volume("ops", "admin"), beside.volume("shop", "web")
	sees.publish()
	blind.publish()
	if listed := sees.app().call("GET", "/v1/locks?namespace=shop", "").want(200, ""); !strings.Contains(string(listed.body), "of-shop:1") {
		t.Errorf("listed: %s", listed.body)
	}
	blind.app().call("GET", "/v1/locks?namespace=ops", "").want(403, "forbidden")
	sees.app().call("PUT", lockPath("x"), "").want(501, "unsupported")
	if _, shown := openPage(t, startConsole(t, sees.direct()), "/n/shop/"); !strings.Contains(shown, "of-shop:1") {
		t.Errorf("the console does not show the other namespace: %s", shown)
	}
	if _, shown := openPage(t, startConsole(t, blind.direct()), "/n/ops/"); strings.Contains(shown, "of-ops") {
		t.Errorf("the console shows another namespace: %s", shown)
	}
}

// TestKilledNode: after a kill -9, the next run finds what is published, and frees the locks of the run before long before their leases end. So it does for a
// pod that was unpublished meanwhile.
func TestKilledNode(t *testing.T) {
	t.Parallel()
	limit := slowed(2 * time.Second)
	o, db := onPostgres(t)
	o = o.with(options{"TTL": "60s", "POSTGRES_POLL_INTERVAL": noPoll})
	p, one := rooted(t, o)
	other := start(t, o.with(options{"NAMESPACE": "shop"}))
	web, gone := p.volume("shop", "web-0"), p.volume("shop", "web-1")
	web.publish()
	gone.publish()
	web.app().acquire("left", "")
	gone.app().acquire("left too", "")
	taker, second := dial(t, other.socket), dial(t, other.socket)
	taker.send("PUT", lockPath("left"), `{"wait_ms":-1}`)
	second.send("PUT", lockPath("left too"), `{"wait_ms":-1}`)
	queueOf(t, db, 2)
	one.kill()
	gone.unpublish()
	began := time.Now()
	startNode(t, p, o)
	taker.read("PUT", lockPath("left")).granted()
	second.read("PUT", lockPath("left too")).granted()
	if took := time.Since(began); took > limit {
		t.Errorf("granted %s after the restart, want at most %s", took, limit)
	}
	web.app().acquire("again", "")
	runs, err := filepath.Glob(p.folder().Server(p.user) + "/*.lock")
	if err != nil || len(runs) != 2 {
		t.Errorf("runs: %v, %v", runs, err)
	}
}

// TestNodeUpgrade: a second run takes the sockets over. The first one keeps its connections and sessions with their locks, and ends when they hold none. A pool
// goes on over the change: calls for an old session come to the new run, and reach the old one.
func TestNodeUpgrade(t *testing.T) {
	t.Parallel()
	servers(t, func(t *testing.T, o options) {
		o = o.with(options{"TTL": "60s"})
		p, old := rooted(t, o)
		web, pay := p.volume("shop", "web-0"), p.volume("pay", "web-0")
		web.publish()
		pay.publish()
		holder := web.app()
		token := holder.acquire("by connection", "")
		session := openSession(t, web.socket(), "")
		before := web.app()
		inSession := before.acquire("by session", "", session.joins())
		idle := pay.app()
		idle.acquire("of pay", "")
		idle.call("GET", "/v1", "").want(200, "")

		fresh := startNode(t, p, o)
		if status, body := fresh.get("/readyz"); status != 200 {
			t.Errorf("ready: %d %s", status, body)
		}
		// Both runs live, so neither has reaped the other's leases.
		holder.call("PATCH", lockPath("by connection"), fmt.Sprintf(`{"token":%d}`, token)).want(200, "")
		late := web.app()
		late.call("PUT", lockPath("by connection"), "").want(423, "held")
		late.acquire("fresh", "")

		old.signal(syscall.SIGTERM)
		old.await("the old run to leave", func() bool { return strings.Contains(old.log.String(), "another run serves this pod") })
		// The pool: a new connection, the old session.
		pooled := web.app()
		if again := pooled.call("PATCH", lockPath("by session"), fmt.Sprintf(`{"token":%d}`, inSession), session.joins()); again.status != 200 {
			t.Errorf("passed on: %d %s", again.status, again.body)
		}
		second := pooled.acquire("by session, after the change", `{"data":{"code":"session_ended"}}`, session.joins())
		pooled.call("PUT", lockPath("by connection"), "", session.joins()).want(423, "held")
		pooled.call("GET", "/v1/locks?scope=session", "", session.joins()).want(200, "")
		web.app().call("PUT", lockPath("x"), "", "Lock-Session: no-such-session").want(410, "session_ended")
		pay.app().call("PATCH", lockPath("by session"), fmt.Sprintf(`{"token":%d}`, inSession), session.joins()).want(410, "session_ended")

		// A waiter of the new run gets what the old one releases.
		waiter := web.app()
		waiter.send("PUT", lockPath("by connection"), `{"wait_ms":-1}`)
		// A caller of a passed-on call leaves: its wait ends, and it gets nothing later.
		leaver := web.app()
		leaver.send("PUT", lockPath("fresh"), `{"wait_ms":-1}`, session.joins())
		leaver.close()
		holder.release("by connection", token)
		waiter.read("PUT", lockPath("by connection")).granted()
		pooled.release("by session", inSession, session.joins())
		pooled.release("by session, after the change", second, session.joins())
		select {
		case <-old.ended:
			t.Error("the old run ended while a pod held a lock")
		default:
		}
		idle.close()
		if code := old.wait(); code != 0 {
			t.Errorf("exit code %d", code)
		}
		late.call("GET", "/v1/locks?scope=session", "").want(200, "")
		web.app().acquire("after", "")
		if runs, err := filepath.Glob(p.folder().Server(p.user) + "/*.lock"); err != nil || len(runs) != 1 {
			t.Errorf("runs: %v, %v", runs, err)
		}
	})
}

// TestNodeDrainsABusyPod: a pod that always holds some lock gets nothing more from the old run at last, releases, and loses nothing.
func TestNodeDrainsABusyPod(t *testing.T) {
	t.Parallel()
	o, _ := onPostgres(t)
	o = o.with(options{"TTL": "60s", "DRAIN_TIMEOUT": slowed(6 * time.Second).String()})
	p, old := rooted(t, o)
	web := p.volume("shop", "web-0")
	web.publish()
	busy := web.app()
	first := busy.acquire("first", "")
	startNode(t, p, o)
	old.signal(syscall.SIGTERM)
	old.await("the old run to leave", func() bool { return strings.Contains(old.log.String(), "another run serves this pod") })
	second := busy.acquire("second", "")
	busy.release("first", first)
	old.await("the last part of the drain", func() bool { return len(old.logged("this run grants this pod nothing more")) > 0 })
	busy.call("PUT", lockPath("third"), "").want(503, "draining")
	busy.release("second", second)
	if code := old.wait(); code != 0 || strings.Contains(old.log.String(), "still hold locks") {
		t.Errorf("exit code %d, or a lock was lost", code)
	}
	web.app().acquire("third", "")
}

// TestNodeThatCannotServe: a second run that does not reach the store takes nothing over.
func TestNodeThatCannotServe(t *testing.T) {
	t.Parallel()
	o, _ := onPostgres(t)
	p, first := rooted(t, o)
	web := p.volume("shop", "web-0")
	web.publish()
	holder := web.app()
	holder.acquire("k", "")
	bad := launchNode(t, p, options{"STORE_URL": "postgres://u@" + freeAddress(t) + "/d?sslmode=disable"})
	bad.await("the wait for the store", func() bool { return strings.Contains(bad.log.String(), "takes over when it can reach the store") })
	if status, _ := bad.get("/readyz"); status != 503 {
		t.Errorf("ready: %d", status)
	}
	web.app().call("PUT", lockPath("k"), "").want(423, "held")
	late := p.volume("shop", "web-1")
	late.publish()
	late.app().call("PUT", lockPath("k"), "").want(423, "held")
	if code := bad.stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	web.app().call("PUT", lockPath("k"), "").want(423, "held")

	// A second run that has taken over and ends, as when an update is taken back: the first one takes its paths again.
	other := startNode(t, p, o)
	web.app().call("PUT", lockPath("k"), "").want(423, "held")
	other.kill()
	first.await("the first run to take the path again", func() bool { return len(first.logged("the pod's socket was missing, and is made again")) > 0 })
	eventually(t, "the first run to serve again", func() bool {
		a, err := tryDial(t, web.socket())
		if err != nil {
			return false
		}
		defer a.close()
		return a.call("PUT", lockPath("k"), "").status == 423
	})
	last := p.volume("shop", "web-2")
	last.publish()
	last.app().call("PUT", lockPath("k"), "").want(423, "held")
}

// TestNodeWithLocksElsewhere: a second run on another database serves nobody while the first one lives, because the pods would get the same locks from both.
func TestNodeWithLocksElsewhere(t *testing.T) {
	t.Parallel()
	o, _ := onPostgres(t)
	elsewhere, _ := onPostgres(t)
	p, one := rooted(t, o.with(options{"TTL": "60s"}))
	web := p.volume("shop", "web-0")
	web.publish()
	holder := web.app()
	holder.acquire("k", "")
	other := launchNode(t, p, elsewhere)
	other.await("the reason", func() bool {
		return len(other.logged("this lock server serves nobody yet", "has its locks in postgres")) == 1
	})
	if status, _ := other.get("/readyz"); status != 503 {
		t.Errorf("ready: %d", status)
	}
	web.app().call("PUT", lockPath("k"), "").want(423, "held")
	late := p.volume("shop", "web-1")
	late.publish()
	late.app().call("PUT", lockPath("k"), "").want(423, "held")
	one.kill()
	other.await("the second run to serve", func() bool { return strings.Contains(other.log.String(), `"msg":"ready"`) })
	web.app().acquire("k", "")
}

// TestGreedyPod: one pod that holds more locks than the memory has room for is refused, and the others of its node go on.
// Proves: threat flood, threat other pod
func TestGreedyPod(t *testing.T) {
	t.Parallel()
	p := startPlugin(t, nodeFolder(t), patience)
	s := startNode(t, p, options{"STORE_URL": "memory://"}, "GOMEMLIMIT=32MiB")
	greedy, quiet := p.volume("shop", "greedy"), p.volume("pay", "quiet")
	greedy.publish()
	quiet.publish()
	taker, other := greedy.app(), quiet.app()
	other.acquire("before", "")
	const most = 100_000 // locks, which take twice the memory
	n := 0
	fill := func() { // refused, it takes nothing; what was garbage may be free a moment later
		t.Helper()
		for ; n < most; n += 100 {
			keys := make([]string, 100)
			for i := range keys {
				keys[i] = fmt.Sprint(strings.Repeat("k", 200), n+i)
			}
			body, err := json.Marshal(map[string]any{"keys": keys})
			if err != nil {
				t.Fatal(err)
			}
			if ans := taker.call("POST", "/v1/locks", string(body)); ans.status != 200 {
				ans.want(429, "limit")
				return
			}
		}
		t.Fatal("the greedy pod is not refused")
	}
	fill()
	for i := range 10 {
		other.acquire(fmt.Sprint("during ", i), "")
	}
	quiet.app().acquire("by a new connection", "")
	fill()
	s.noErrors()
}

// TestNodeSharesConnections: all pods share the connections to the store. A file that is bad later takes nothing from them, nor from a new pod.
func TestNodeSharesConnections(t *testing.T) {
	t.Parallel()
	dir := nodeFolder(t)
	file := dir + "/store-url"
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	_, db := onPostgres(t)
	admit(t, db)
	write(db)
	p := startPlugin(t, dir, patience)
	s := startNode(t, p, options{"STORE_URL_FILE": file, "POOL_MAX_CONNS": "4"})
	pods := make([]podVolume, 8)
	for i := range pods {
		pods[i] = p.volume(fmt.Sprint("ns-", i), "web")
		pods[i].publish()
		pods[i].app().acquire("job", "")
	}
	if n := pgtest.Query[int64](t, db, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"); n > 4 {
		t.Errorf("%d connections for %d pods, want at most 4", n, len(pods))
	}
	write("postgres://not a URL")
	late := p.volume("late", "web")
	late.publish()
	late.app().acquire("job", "")
	pods[0].app().call("PUT", lockPath("job"), "").want(423, "held")
	s.noErrors()
}

// TestNodeOpensWithoutStore: a pod whose start waits for the store holds up no other one, and not the end of another.
func TestNodeOpensWithoutStore(t *testing.T) {
	t.Parallel()
	p, s := rooted(t, options{"STORE_URL": "postgres://u@" + freeAddress(t) + "/d?sslmode=disable"})
	first := p.volume("shop", "first")
	first.publish()
	const more = 12
	published := make(chan error, more)
	for i := range more {
		v := p.volume("shop", fmt.Sprint("web-", i))
		v.makePod()
		go func() { published <- v.tryPublish() }()
	}
	s.await("the opening of all", func() bool { return len(s.logged("opening a pod")) == 1+more })
	if len(s.logged("serving a pod")) != 1 {
		t.Error("a pod is served before the store was awaited")
	}
	first.unpublish()
	s.await("the end of the first pod", func() bool { return len(s.logged("the volume is unpublished")) == 1 })
	if n := len(s.logged("serving a pod")); n != 1 {
		t.Errorf("%d pods were served before the end of the first one was noticed", n-1)
	}
	for range more {
		if err := <-published; err != nil {
			t.Error(err)
		}
	}
}

// TestUnpublishInBothRuns: the end of a pod ends its sessions in every run that has some.
func TestUnpublishInBothRuns(t *testing.T) {
	t.Parallel()
	servers(t, func(t *testing.T, o options) {
		o = o.with(options{"TTL": "60s"})
		p, old := rooted(t, o)
		web := p.volume("shop", "web-0")
		web.publish()
		web.app().acquire("in the old", "")
		startNode(t, p, o)
		old.signal(syscall.SIGTERM)
		old.await("the old run to leave", func() bool { return strings.Contains(old.log.String(), "another run serves this pod") })
		web.app().acquire("in the new", "")
		web.unpublish()
		if code := old.wait(); code != 0 {
			t.Errorf("exit code %d", code)
		}
		web.leavesNothing()
		// Neither lock is left: a pod of the same namespace gets both, long before a lease ends.
		after := p.volume("shop", "web-1")
		after.publish()
		next := after.app()
		next.acquire("in the old", `{"wait_ms":10000}`, "Cache-Control: no-cache")
		next.acquire("in the new", `{"wait_ms":10000}`, "Cache-Control: no-cache")
		// A pod that is published during the drain is the new run's.
		web.publish()
		web.app().acquire("again", "")
	})
}

// TestNodeAsAnotherUser: after a change of the user, a server serves the pods that were published before.
func TestNodeAsAnotherUser(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root can start processes of two users")
	}
	o, _ := onPostgres(t)
	p, old := rooted(t, o.with(options{"TTL": "60s", "DRAIN_TIMEOUT": "1s"}))
	web := p.volume("shop", "web-0")
	web.publish()
	holder := web.app()
	holder.acquire("k", "")
	if code := p.stop(); code != 0 {
		t.Fatalf("exit code of the plugin: %d", code)
	}
	next := startPluginFor(t, p.dir, patience, 1000700001)
	web.p = next
	web.publish() // the mounts of a plugin are its own here
	fresh := startNode(t, next, o)
	web.app().call("PUT", lockPath("k"), "").want(423, "held")
	if len(fresh.logged("serving a pod")) != 1 {
		t.Error("the new server does not serve the pod")
	}
	late := next.volume("shop", "web-1")
	late.publish()
	late.app().call("PUT", lockPath("k"), "").want(423, "held")
	holder.close()
	late.app().acquire("k", `{"wait_ms":10000}`)
	if code := old.stop(); code != 0 {
		t.Errorf("exit code: %d", code)
	}
}

// TestNodeWithoutPlugin: a server that starts first waits for the folder.
func TestNodeWithoutPlugin(t *testing.T) {
	t.Parallel()
	dir := nodeFolder(t)
	s := launchNode(t, &plugin{dir: dir, user: serverUser()}, options{"STORE_URL": "memory://"})
	s.await("the wait", func() bool { return strings.Contains(s.log.String(), "waiting for the folder") })
	p := startPlugin(t, dir, patience)
	v := p.volume("a", "b")
	v.publish()
	v.app().acquire("k", "")
	var line map[string]any
	if err := json.Unmarshal([]byte(strings.SplitN(s.log.String(), "\n", 2)[0]), &line); err != nil {
		t.Error(err)
	}
}
