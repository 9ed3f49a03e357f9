package load

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
	"github.com/locksidecar/locksidecar/test/campaign/check"
	"github.com/locksidecar/locksidecar/test/campaign/history"
	"github.com/locksidecar/locksidecar/test/campaign/stored"
)

var (
	binary  string
	cluster *pgtest.Cluster
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	folder, err := os.MkdirTemp("", "lsl")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(folder) }()
	binary = filepath.Join(folder, "locksidecar")
	build := exec.Command("go", "build", "-tags", "grpcnotrace", "-trimpath", "-o", binary, "./cmd/locksidecar")
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // as released, so that most of it is compiled already
	build.Dir = "../../.."                            // what the sidecar needs stands in its own module
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "building the sidecar: %v\n%s", err, out)
		return 1
	}
	return pgtest.Main(m, &cluster, pgtest.WithoutFsync())
}

const (
	testTTL = time.Second
	pod     = "load"
)

// longest is how long tests wait for what must happen.
const longest = time.Minute

// until waits for what must happen.
func until(t *testing.T, what string, yes func() bool) {
	t.Helper()
	for end := time.Now().Add(longest); !yes(); time.Sleep(5 * time.Millisecond) { // the pause of a poll
		if time.Now().After(end) {
			t.Errorf("not within %s: %s", longest, what)
			return
		}
	}
}

// start starts a sidecar at that socket and waits until it is ready.
func start(t *testing.T, socket, store string, env ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(binary, "serve")
	cmd.Env = append(os.Environ(), "LOCKSIDECAR_SOCKET="+socket, "LOCKSIDECAR_STORE_URL="+store, "LOCKSIDECAR_POD="+pod,
		"LOCKSIDECAR_TTL="+testTTL.String(), "LOCKSIDECAR_ALLOW_FORCE=true", "LOCKSIDECAR_LOG_LEVEL=error")
	cmd.Env = append(cmd.Env, env...)
	cmd.Stderr, cmd.Stdout = os.Stderr, os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	until(t, "the sidecar is ready", func() bool { return ready(socket) })
	return cmd
}

func ready(socket string) bool {
	c, err := dial(context.Background(), socket)
	if err != nil {
		return false
	}
	defer func() { _ = c.Close() }()
	a, err := c.call(context.Background(), patience, "GET", "/readyz", "")
	return err == nil && a.status == 200
}

func folder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "lsl") // t.TempDir is too long for the path of a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func fence(t *testing.T, keys int) *Fence {
	t.Helper()
	f, err := OpenFence(filepath.Join(folder(t), "fence"), keys)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// outcomes counts what became of what.
func outcomes(ops []history.Op) map[string]int {
	n := make(map[string]int)
	for _, op := range ops {
		n[strings.TrimSpace(string(op.Kind)+" "+string(op.Outcome))]++
	}
	return n
}

// TestLoad: the clients do all that they can do, lose what a stopped sidecar held for them,
// and come back to one that was killed and is there again. The checkers accept their
// records.
func TestLoad(t *testing.T) {
	const keys = 12
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	store, dir := cluster.NewDatabase(t), folder(t)
	sockets := []string{filepath.Join(dir, "a.sock"), filepath.Join(dir, "b.sock")}
	first := start(t, sockets[0], store)
	start(t, sockets[1], store)
	rec := history.NewRecorder("load", nil)
	ctx, cancel := context.WithCancel(context.Background())
	fence := fence(t, keys)
	var wg sync.WaitGroup
	defer func() { cancel(); wg.Wait() }()
	wg.Go(func() { Observe(ctx, stored.Postgres(store), 20*time.Millisecond, rec) })
	wg.Go(func() {
		if err := Run(ctx, Config{
			Sockets: sockets, Clients: 48, Keys: keys, Seed: 1, Recorder: rec, TTL: testTTL, Fence: fence, Force: true,
		}); err != nil {
			t.Error(err)
		}
	})
	<-time.After(2 * time.Second) // traffic
	stopped := rec.Begin(history.Op{Kind: history.Fault, Note: "stopped"})
	_ = first.Process.Signal(syscall.SIGSTOP)
	<-time.After(2 * testTTL) // what it held is lost
	_ = first.Process.Signal(syscall.SIGCONT)
	rec.End(stopped)
	<-time.After(time.Second) // traffic
	killed := rec.Begin(history.Op{Kind: history.Ended, Note: "killed"})
	_ = first.Process.Kill()
	_ = first.Wait()
	rec.End(killed)
	again := history.Now()
	start(t, sockets[0], store)
	until(t, "all that clients can do", func() bool { return len(missing(t, rec, again)) == 0 })
	cancel()
	wg.Wait()
	ops, err := rec.Ops()
	if err != nil {
		t.Fatal(err)
	}
	if err := check.All(ops, check.DefaultRules()).Err(); err != nil {
		t.Error(err)
	}
	t.Logf("%d operations: %v", len(ops), outcomes(ops))
	for _, what := range missing(t, rec, again) {
		t.Errorf("no %q", what)
	}
}

// missing is what clients can do and have not done yet; one thing is to be granted
// something by the first sidecar after that time.
func missing(t *testing.T, rec *history.Recorder, again int64) (not []string) {
	t.Helper()
	ops, err := rec.Ops()
	if err != nil {
		t.Fatal(err)
	}
	n := outcomes(ops)
	for _, op := range ops {
		if op.Outcome == history.Granted && op.Sidecar == 0 && op.Call > again {
			n["granted by a sidecar that was killed"]++
		}
	}
	for _, what := range []string{
		"acquire granted", "acquire held", "acquire timeout", "acquire", "release done", "confirm held", "confirm nothold",
		"get free", "get held", "stop done", "force done", "drop", "write done", "downgrade held", "acquire mismatch", "granted by a sidecar that was killed",
	} {
		if n[what] == 0 {
			not = append(not, what)
		}
	}
	return not
}

// TestRetryAfter: a client that must wait before it asks again does so. There are twice as many calls as clients, so
// at least one call is a second one.
func TestRetryAfter(t *testing.T) {
	const callers = 4
	ctx, cancel := context.WithTimeout(t.Context(), longest)
	defer cancel()
	socket := filepath.Join(folder(t), "s.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	var calls atomic.Int64
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if calls.Add(1) == 2*callers {
			cancel()
		}
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = w.Write([]byte(`{"code":"store_unavailable"}`))
	})}
	go func() { _ = server.Serve(listener) }()
	defer func() { _ = server.Close() }()
	began := time.Now()
	err = Run(ctx, Config{
		Sockets: []string{socket}, Clients: callers, Keys: 12, Seed: 1, Recorder: history.NewRecorder("load", nil), TTL: testTTL, Fence: fence(t, 12),
	})
	if took, n := time.Since(began), calls.Load(); err != nil || n < 2*callers || took < time.Second {
		t.Errorf("%d calls in %s of %d clients that were each told to come in a second, %v", n, took, callers, err)
	}
}
