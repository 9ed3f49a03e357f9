package conn

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// listenAt tries to listen on a path.
func listenAt(t *testing.T, path string) (*Socket, error) {
	t.Helper()
	return listenAs(t, path, 0o660)
}

func listenAs(t *testing.T, path string, mode os.FileMode) (*Socket, error) {
	t.Helper()
	s, err := Listen(t.Context(), path, mode)
	if err == nil {
		t.Cleanup(func() { s.Close(quiet) })
	}
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

func TestSocketFolder(t *testing.T) {
	dir := t.TempDir()
	_, err := listenAt(t, filepath.Join(dir, "a", "b", "s"))
	wantError(t, err, "LOCKSIDECAR_SOCKET", filepath.Join(dir, "a", "b"), "does not exist")
	if _, err := listenAt(t, filepath.Join(dir, "a", "s")); err != nil {
		t.Error(err)
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = listenAt(t, filepath.Join(file, "s"))
	wantError(t, err, "LOCKSIDECAR_SOCKET")
}

// A folder in somebody's home is theirs alone, and others must reach one elsewhere.
func TestTheFolderInAHome(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	old := syscall.Umask(0)
	defer syscall.Umask(old)
	for dir, want := range map[string]fs.FileMode{filepath.Join(home, ".locksidecar"): 0o700, filepath.Join(t.TempDir(), "run"): 0o755} {
		if _, err := listenAt(t, filepath.Join(dir, "s")); err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v, want %o", dir, info.Mode(), err, want)
		}
	}
}

// Proves: trap unlinked file, threat other container, threat other user
func TestSocketMode(t *testing.T) {
	old := syscall.Umask(0o077)
	defer syscall.Umask(old)
	for _, mode := range []os.FileMode{0o660, 0o600, 0o666} {
		path := filepath.Join(t.TempDir(), "s")
		if _, err := listenAs(t, path, mode); err != nil {
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

// Proves: trap unlinked file, threat other user
func TestSocketInTheWay(t *testing.T) {
	t.Run("file", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "s")
		if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := listenAt(t, path)
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
		_, err := listenAt(t, filepath.Join(dir, "s"))
		wantError(t, err, "not a socket")
	})
	t.Run("link as lock file", func(t *testing.T) {
		dir := t.TempDir()
		if err := os.Symlink("victim", filepath.Join(dir, "s.lock")); err != nil {
			t.Fatal(err)
		}
		_, err := listenAt(t, filepath.Join(dir, "s"))
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
		_, err = listenAt(t, path)
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
		if _, err := listenAt(t, path); err != nil {
			t.Error(err)
		}
	})
}

// Two sidecars never share a path, not even while one of them has not bound it
// yet, or when somebody has removed its socket.
// Proves: trap unlinked file, threat other user
func TestLockFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	first, err := listenAt(t, path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	_, err = listenAt(t, path)
	wantError(t, err, "another sidecar", path+".lock", "name another socket")
	first.Close(quiet)
	if _, err := listenAt(t, path); err != nil {
		t.Error(err)
	}
}

func TestSocketIsRemovedIfOurs(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	s, err := listenAt(t, path)
	if err != nil {
		t.Fatal(err)
	}
	s.Close(quiet)
	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Error("the socket is still there")
	}

	if s, err = listenAt(t, path); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	stale(t, path) // somebody else's
	s.Close(quiet)
	if _, err := os.Lstat(path); err != nil {
		t.Error("a socket that was not ours is removed")
	}
}

// A user who can write in the folder can put a link in the socket's place, just after it was made.
// Proves: threat other user
func TestModeIsSetOnlyOnSocket(t *testing.T) {
	dir := t.TempDir()
	victim, link, socket := filepath.Join(dir, "victim"), filepath.Join(dir, "link"), filepath.Join(dir, "socket")
	if err := os.WriteFile(victim, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("victim", link); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{link, victim} {
		if err := setMode(path, 0o666); !errors.Is(err, errNotTheSocket) {
			t.Errorf("%s: %v", path, err)
		}
	}
	if info, err := os.Stat(victim); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v: what the link points to was opened", info.Mode(), err)
	}
	stale(t, socket)
	if err := setMode(socket, 0o640); err != nil {
		t.Error(err)
	} else if info, _ := os.Stat(socket); info.Mode().Perm() != 0o640 {
		t.Errorf("mode %v", info.Mode())
	}
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

// A server takes a path over from another one, which sees that. Nothing that stands beside the path holds it up, and a missing file is nobody's.
func TestTakeOver(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "s")
	if err := os.MkdirAll(path+".new/x", 0o755); err != nil {
		t.Fatal(err)
	}
	claim := func(take func() error) error { return take() }
	take := func() *Socket {
		t.Helper()
		f, err := TakeOver(t.Context(), path, 0o666, claim)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close(quiet) })
		return f
	}
	one := take()
	if !one.IsThere() || one.IsReplaced() {
		t.Error("the first server does not serve")
	}
	two := take()
	if one.IsThere() || !one.IsReplaced() || !two.IsThere() {
		t.Error("the second server did not take over")
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if one.IsReplaced() || two.IsReplaced() || two.IsThere() {
		t.Error("a missing file counts as a server")
	}
	refused := errors.New("not now")
	if _, err := TakeOver(t.Context(), path, 0o666, func(func() error) error { return refused }); !errors.Is(err, refused) {
		t.Error(err)
	}
	if left, err := filepath.Glob(dir + "/.new-*"); err != nil || len(left) > 0 {
		t.Errorf("left: %q, %v", left, err)
	}
}
