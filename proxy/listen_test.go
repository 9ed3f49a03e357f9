package proxy

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// startAt tries to start a server on a path.
func startAt(t *testing.T, path string, change ...func(*Config)) (*Server, error) {
	t.Helper()
	cfg := Config{Locks: newFake(), Logger: slog.New(slog.DiscardHandler), Socket: path, MaxSessions: 10}
	for _, c := range change {
		c(&cfg)
	}
	s := New(cfg)
	t.Cleanup(s.Stop)
	err := s.Start(context.Background())
	return s, err
}

func wantError(t *testing.T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatal("no error")
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q does not contain %q", err, part)
		}
	}
}

func TestSocketPath(t *testing.T) {
	dir := t.TempDir()
	long := filepath.Join(dir, strings.Repeat("x", 107-len(dir)))
	_, err := startAt(t, long) // 108 bytes
	wantError(t, err, "LOCKSIDECAR_SOCKET", "107", "108")
	if _, err := startAt(t, long[:107]); err != nil {
		// The lock file's path is longer, and may be.
		t.Error(err)
	}
	_, err = startAt(t, "")
	wantError(t, err, "LOCKSIDECAR_SOCKET", "empty")
}

func TestSocketFolder(t *testing.T) {
	dir := t.TempDir()
	_, err := startAt(t, filepath.Join(dir, "a", "b", "s"))
	wantError(t, err, "LOCKSIDECAR_SOCKET", filepath.Join(dir, "a", "b"), "does not exist")
	if _, err := startAt(t, filepath.Join(dir, "a", "s")); err != nil {
		t.Error(err)
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = startAt(t, filepath.Join(file, "s"))
	wantError(t, err, "LOCKSIDECAR_SOCKET")
}

func TestSocketMode(t *testing.T) {
	old := syscall.Umask(0o077)
	defer syscall.Umask(old)
	for _, mode := range []os.FileMode{0o660, 0o600, 0o666} {
		path := filepath.Join(t.TempDir(), "s")
		if _, err := startAt(t, path, func(c *Config) { c.SocketMode = mode }); err != nil {
			t.Fatal(err)
		}
		info, err := os.Lstat(path)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != mode {
			t.Errorf("mode is %v, want %v", info.Mode().Perm(), mode)
		}
	}
	if now := syscall.Umask(0o077); now != 0o077 {
		t.Errorf("the umask was left at %04o", now)
	}
}

func TestSocketInTheWay(t *testing.T) {
	t.Run("file", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "s")
		if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := startAt(t, path)
		wantError(t, err, "LOCKSIDECAR_SOCKET", "not a socket")
		if content, _ := os.ReadFile(path); string(content) != "precious" {
			t.Error("the file was touched")
		}
	})
	t.Run("link to a socket", func(t *testing.T) {
		dir := t.TempDir()
		stale(t, filepath.Join(dir, "real"))
		if err := os.Symlink("real", filepath.Join(dir, "s")); err != nil {
			t.Fatal(err)
		}
		_, err := startAt(t, filepath.Join(dir, "s"))
		wantError(t, err, "not a socket")
	})
	t.Run("link as lock file", func(t *testing.T) {
		dir := t.TempDir()
		if err := os.Symlink("victim", filepath.Join(dir, "s.lock")); err != nil {
			t.Fatal(err)
		}
		_, err := startAt(t, filepath.Join(dir, "s"))
		wantError(t, err, "LOCKSIDECAR_SOCKET", "lock file")
		if _, err := os.Lstat(filepath.Join(dir, "victim")); !os.IsNotExist(err) {
			t.Error("what the link points to was made:", err)
		}
	})
	t.Run("live socket", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "s")
		ln, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = ln.Close() }()
		_, err = startAt(t, path)
		wantError(t, err, "another process serves")
		if nc, err := net.Dial("unix", path); err != nil {
			t.Error("the live socket does not work any more:", err)
		} else {
			_ = nc.Close()
		}
	})
	t.Run("stale socket", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "s")
		stale(t, path)
		if _, err := startAt(t, path); err != nil {
			t.Error(err)
		}
	})
}

// stale leaves a socket that nobody serves.
func stale(t *testing.T, path string) {
	t.Helper()
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		t.Fatal(err)
	}
	ln.SetUnlinkOnClose(false)
	_ = ln.Close()
}

// Two sidecars never share a path, not even while one of them has not bound it
// yet, or when somebody has removed its socket.
func TestLockFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	first, err := startAt(t, path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	_, err = startAt(t, path)
	wantError(t, err, "another sidecar", path+".lock")
	first.Stop()
	if _, err := startAt(t, path); err != nil {
		t.Error(err)
	}
}

func TestSocketIsRemovedIfOurs(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	s, err := startAt(t, path)
	if err != nil {
		t.Fatal(err)
	}
	s.Stop()
	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Error("the socket is still there")
	}

	if s, err = startAt(t, path); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	stale(t, path) // somebody else's
	s.Stop()
	if _, err := os.Lstat(path); err != nil {
		t.Error("a socket that was not ours is removed")
	}
}

func TestFailedStartLeavesNothing(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	path := filepath.Join(t.TempDir(), "s")
	_, err = startAt(t, path, func(c *Config) { c.TCPAddr = ln.Addr().String() })
	wantError(t, err, "LOCKSIDECAR_TCP_ADDR")
	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Error("the socket is still there")
	}
	_, err = startAt(t, path, func(c *Config) { c.AdminAddr = ln.Addr().String() })
	wantError(t, err, "LOCKSIDECAR_ADMIN_ADDR")
	s, err := startAt(t, path)
	if err != nil {
		t.Fatal(err)
	}
	if s.Start(context.Background()) == nil {
		t.Error("started twice")
	}
}

func TestTCPOnlyOnLoopback(t *testing.T) {
	for _, addr := range []string{"0.0.0.0:0", ":0", "[::]:0", "10.0.0.1:80", "example.com:80", "127.0.0.1"} {
		_, err := startAt(t, filepath.Join(t.TempDir(), "s"), func(c *Config) { c.TCPAddr = addr })
		wantError(t, err, "LOCKSIDECAR_TCP_ADDR", addr)
	}
	_, err := startAt(t, filepath.Join(t.TempDir(), "s"), func(c *Config) {
		c.TCPAddr, c.AllowedUIDs = "127.0.0.1:0", []uint32{1}
	})
	wantError(t, err, "LOCKSIDECAR_TCP_ADDR", "LOCKSIDECAR_ALLOWED_UIDS")
}

func TestAllowedUIDs(t *testing.T) {
	me := uint32(os.Getuid())
	f := start(t, func(c *Config) { c.AllowedUIDs = []uint32{me + 1, me} })
	f.dial().do("GET", "/v1", "").want(t, 200, "")
	for c := range f.conns {
		if !c.peer.Known || c.peer.UID != me || c.peer.PID != int32(os.Getpid()) {
			t.Errorf("%+v", c.peer)
		}
	}
	f = start(t, func(c *Config) { c.AllowedUIDs = []uint32{me + 1} })
	c := f.dial()
	a := c.do("PUT", "/v1/locks/a", "")
	a.want(t, 403, "forbidden")
	a.detail(t, "uid", "LOCKSIDECAR_ALLOWED_UIDS")
	c.wantEnd()
	if f.locks.opened != 0 {
		t.Error("a session was opened")
	}
}

// Claimed runs when the path is this process's and nobody is served yet; when it
// fails, nothing is left behind.
func TestClaimed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	calls := 0
	claimed := func(err error) func(*Config) {
		return func(c *Config) { c.Claimed = func() error { calls++; return err } }
	}
	why := errors.New("not today")
	if _, err := startAt(t, path, claimed(why)); !errors.Is(err, why) {
		t.Errorf("told %v", err)
	}
	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Errorf("left behind: %v", err)
	}
	if _, err := startAt(t, path, claimed(nil)); err != nil || calls != 2 {
		t.Errorf("told %v, called %d times", err, calls)
	}
	if _, err := startAt(t, path, claimed(nil)); err == nil || calls != 2 {
		t.Errorf("told %v, called %d times: the path is somebody else's", err, calls)
	}
}

// Whoever reads "serving" wants an address that can be copied.
func TestStartLogsAddresses(t *testing.T) {
	var said logs
	f := start(t, func(c *Config) {
		c.Logger, c.AdminAddr = slog.New(slog.NewJSONHandler(&said, nil)), "127.0.0.1:0"
	})
	if want := `"tcp":null,"admin":"` + f.AdminAddr().String() + `"`; !strings.Contains(said.text(), want) {
		t.Errorf("%s does not say %s", said.text(), want)
	}
}
