package e2e

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testing/logtest"
)

// patience is how long the tests wait for an event.
const patience = 20 * time.Second

// sidecar is a running process of the built binary.
type sidecar struct {
	t      *testing.T
	socket string
	cmd    *exec.Cmd
	log    *logBuffer
	ended  chan struct{}
	code   int
}

// options are environment variables without their prefix: {"TTL": "2s"}.
type options map[string]string

// start starts a sidecar in its own folder and waits until it is ready.
func start(t *testing.T, o options) *sidecar {
	t.Helper()
	return startIn(t, folder(t), o)
}

// startIn starts a sidecar whose socket is in dir.
func startIn(t *testing.T, dir string, o options) *sidecar {
	t.Helper()
	s := launch(t, dir, o)
	s.await("ready", func() bool { return s.tryReady() })
	return s
}

// launch starts a sidecar without waiting for it.
func launch(t *testing.T, dir string, o options) *sidecar {
	t.Helper()
	return launchWith(t, dir, o, nil)
}

// launchWith is launch with further variables, without a prefix.
func launchWith(t *testing.T, dir string, o options, more []string) *sidecar {
	t.Helper()
	return launchTo(t, dir, o, more, nil)
}

// launchTo is launchWith for a sidecar that writes its log to a file, if the file is not nil.
func launchTo(t *testing.T, dir string, o options, more []string, stderr *os.File) *sidecar {
	t.Helper()
	return launchBy(t, dir, o, more, stderr, binary, "serve")
}

// launchBy is launchTo with another command line.
func launchBy(t *testing.T, dir string, o options, more []string, stderr *os.File, command ...string) *sidecar {
	t.Helper()
	s := &sidecar{t: t, socket: filepath.Join(dir, "s.sock"), log: &logBuffer{}, ended: make(chan struct{})}
	s.cmd = exec.Command(command[0], command[1:]...)
	s.cmd.Env = append(cleanEnv(), "LOCKSIDECAR_SOCKET="+s.socket, "LOCKSIDECAR_LOG_LEVEL=debug", "LOCKSIDECAR_KEEP="+*keep)
	s.cmd.Env = append(s.cmd.Env, more...)
	for name, value := range o {
		s.cmd.Env = append(s.cmd.Env, "LOCKSIDECAR_"+name+"="+value)
	}
	s.cmd.Stdout, s.cmd.Stderr = s.log, s.log
	if stderr != nil {
		s.cmd.Stderr = stderr
	}
	s.run()
	return s
}

// run starts the process. It is killed at the end of the test.
func (s *sidecar) run() {
	s.t.Helper()
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	go func() {
		_ = s.cmd.Wait()
		s.code = s.cmd.ProcessState.ExitCode()
		close(s.ended)
	}()
	s.t.Cleanup(s.kill)
}

// kill ends the process like kill -9, and fails the test after a data race.
func (s *sidecar) kill() {
	_ = s.cmd.Process.Signal(syscall.SIGCONT)
	_ = s.cmd.Process.Kill()
	<-s.ended
	if s.code == 66 || strings.Contains(s.log.String(), "DATA RACE") {
		s.t.Errorf("the sidecar had a data race:\n%s", s.log)
	}
	if s.t.Failed() {
		s.t.Logf("log of the sidecar at %s:\n%s", s.socket, s.log.tail(60))
	}
}

func (s *sidecar) signal(sig syscall.Signal) {
	s.t.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.t.Fatalf("%v: %v", sig, err)
	}
}

// stop sends SIGTERM and returns the exit code.
func (s *sidecar) stop() int {
	s.t.Helper()
	s.signal(syscall.SIGTERM)
	return s.wait()
}

// wait returns the exit code of a sidecar that ends without a signal of the test.
func (s *sidecar) wait() int {
	s.t.Helper()
	select {
	case <-s.ended:
		return s.code
	case <-time.After(patience):
		s.t.Fatalf("the sidecar did not end in %s", patience)
		return -1
	}
}

// await polls until yes returns true. It fails after patience, or when the sidecar ends.
func (s *sidecar) await(what string, yes func() bool) {
	s.t.Helper()
	deadline := time.Now().Add(patience)
	for !yes() {
		select {
		case <-s.ended:
			s.t.Fatalf("waited in vain for %s: the sidecar ended with code %d:\n%s", what, s.code, s.log)
		default:
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("waited in vain for %s: not in %s", what, patience)
		}
		time.Sleep(2 * time.Millisecond) // the pause of a poll
	}
}

func (s *sidecar) tryReady() bool {
	a, err := tryDial(s.t, s.socket)
	if err != nil {
		return false
	}
	defer a.close()
	return a.call("GET", "/readyz", "").status == 200
}

// folder returns a folder with a short path, because socket paths are limited.
func folder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "lse")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// cleanEnv returns the environment without settings of a sidecar.
func cleanEnv() []string {
	var env []string
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "LOCKSIDECAR_") && !strings.HasPrefix(v, "KUBERNETES_") && !strings.HasPrefix(v, "OTEL_") {
			env = append(env, v)
		}
	}
	return env
}

// logBuffer stores the output of a process.
type logBuffer struct{ logtest.Log }

func (l *logBuffer) tail(lines int) string {
	all := strings.Split(strings.TrimSpace(l.String()), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// onPostgres returns the options of a sidecar on a new database, and the database's URL.
func onPostgres(t *testing.T) (options, string) {
	t.Helper()
	url := cluster.NewDatabase(t)
	return options{"STORE_URL": url}, url
}

// with returns the options with further ones.
func (o options) with(more options) options {
	all := options{}
	maps.Copy(all, o)
	maps.Copy(all, more)
	return all
}

var only = flag.String("stores", "memory,postgres,etcd,mysql,redis", "the stores for tests that run on each store")

var keep = flag.String("keep", "", "LOCKSIDECAR_KEEP of sidecars whose test does not choose it")

// stores runs a test on each store.
func stores(t *testing.T, test func(t *testing.T, o options)) {
	for name := range strings.SplitSeq(*only, ",") {
		t.Run(name, func(t *testing.T) {
			var o options
			switch name {
			case "memory":
				o = options{"STORE_URL": "memory://"}
			case "postgres":
				o, _ = onPostgres(t)
			case "etcd":
				o = onSharedEtcd(t)
			case "mysql":
				o = onSharedMySQL(t)
			case "redis":
				o = onSharedRedis(t)
			default:
				t.Fatalf("no store is named %q", name)
			}
			test(t, o)
		})
	}
}

func keys(prefix string, n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("%s:%05d", prefix, i)
	}
	return out
}
