package e2e

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/internal/exitcode"
	"github.com/locksidecar/locksidecar/internal/testing/etcdtest"
	"github.com/locksidecar/locksidecar/internal/testing/mysqltest"
	"github.com/locksidecar/locksidecar/internal/testing/redistest"
)

// carry runs `locksidecar migrate` from one store to another.
func carry(from, to string, more ...string) (out string, code int) {
	cmd := exec.Command(binary, append([]string{"migrate", "--from", from, "--to", to}, more...)...)
	cmd.Env = append(cleanEnv(), "LOCKSIDECAR_FAILOVER=quick") // a new Redis would be quiet for a TTL
	text, err := cmd.CombinedOutput()
	if ended, is := errors.AsType[*exec.ExitError](err); is {
		code = ended.ExitCode()
	}
	return string(text), code
}

// TestMovesToAnotherStore: sidecars move from each store to the next, and back to the first. The tokens of a key that is used on
// each, and those of a key that only one store has seen, are above all earlier ones.
func TestMovesToAnotherStore(t *testing.T) {
	t.Parallel()
	redis, database := redistest.Start(t), mysqltest.Start(t).NewDatabase(t)
	etcd := etcdtest.Start(t)
	first := ownServer(t)
	stores := []string{first, "redis://" + redis.Address, "etcd://" + etcd.Addresses() + "/moved", database.URL(), "etcd://" + etcd.Addresses() + "/again", first}
	last := int64(0) // of the stores before
	for i, url := range stores {
		if i > 0 {
			if out, code := carry(stores[i-1], url); code != 0 || !strings.Contains(out, "each later token of ") {
				t.Fatalf("from %s to %s: exit code %d: %s", stores[i-1], url, code, out)
			}
		}
		s := start(t, options{"STORE_URL": url, "FAILOVER": "quick"})
		a := dial(t, s.socket)
		greatest := last
		for _, key := range []string{"all", "of:" + url} {
			token := a.acquire(key, "")
			if token <= last {
				t.Errorf("%s: the token of %q is %d, after %d", url, key, token, last)
			}
			greatest = max(greatest, token)
			a.release(key, token)
		}
		last = greatest
		if code := s.stop(); code != 0 {
			t.Fatalf("%s: a sidecar ended with %d:\n%s", url, code, s.log.tail(20))
		}
	}
	if last >= 1<<53 {
		t.Errorf("the token %d does not fit into a JSON number", last)
	}
}

// TestMoveIsRefused: locks are not carried, so none may be left. Each refusal names the flag or the store, without its password.
func TestMoveIsRefused(t *testing.T) {
	t.Parallel()
	from, to := onSharedEtcd(t)["STORE_URL"], onSharedEtcd(t)["STORE_URL"]
	s := start(t, options{"STORE_URL": from})
	dial(t, s.socket).acquire("k", "")
	absent := filepath.Join(t.TempDir(), "absent")
	secret := filepath.Join(t.TempDir(), "url")
	if err := os.WriteFile(secret, []byte("mysql://u:s3cret@127.0.0.1:1/d\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		from, to string
		code     int
		says     string
	}{
		"a lock is held":        {from, to, exitcode.Refused, "1 locks are held"},
		"the new store is used": {to, from, exitcode.Refused, "stop all sidecars"},
		"the same store":        {from, from, exitcode.Usage, "the same store"},
		"one flag":              {from, "", exitcode.Usage, "belong together"},
		"no store to keep":      {"memory://", to, exitcode.Config, "--from is memory://"},
		"a URL of nothing":      {from, "mongodb://u:s3cret@h", exitcode.Config, "--to is"},
		"no such file":          {"@" + absent, to, exitcode.Config, absent},
		"nobody answers":        {"@" + secret, to, exitcode.Unavailable, "mysql://u:***@127.0.0.1:1/d"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out, code := carry(test.from, test.to)
			if code != test.code || !strings.Contains(out, test.says) || strings.Contains(out, "s3cret") || strings.Contains(out, "LOCKSIDECAR_STORE_URL") {
				t.Errorf("exit code %d, want %d and %q: %s", code, test.code, test.says, out)
			}
		})
	}
}

// TestMoveWaitsForTheLastLock: with --wait, the tokens are carried as soon as the last lock ends.
func TestMoveWaitsForTheLastLock(t *testing.T) {
	t.Parallel()
	from, to := onSharedEtcd(t)["STORE_URL"], onSharedEtcd(t)["STORE_URL"]
	s := start(t, options{"STORE_URL": from})
	a := dial(t, s.socket)
	token := a.acquire("k", "")
	cmd := exec.Command(binary, "migrate", "--from", from, "--to", to, "--wait", "1m")
	cmd.Env = cleanEnv()
	progress, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line := make([]byte, 200)
	n, err := progress.Read(line)
	if err != nil || !strings.Contains(string(line[:n]), "waiting: 1 locks are held") {
		t.Errorf("it says %q: %v", line[:n], err)
	}
	a.release("k", token)
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

// TestMoveAfterACleanStop: sidecars that were elected to sweep and to count leave nothing behind, so the store may be taken over at once.
// Proves: rule stop
func TestMoveAfterACleanStop(t *testing.T) {
	t.Parallel()
	from, to := onSharedEtcd(t)["STORE_URL"], onSharedEtcd(t)["STORE_URL"]
	s := start(t, options{"STORE_URL": to, "ADMIN_ADDR": "127.0.0.1:0"})
	a := dial(t, s.socket)
	a.release("k", a.acquire("k", ""))
	a.release("timed", a.acquire("timed", `{"bind":"ttl","ttl_ms":3600000}`))
	if code := s.stop(); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	if out, code := carry(from, to); code != 0 {
		t.Errorf("exit code %d: %s", code, out)
	}
}
