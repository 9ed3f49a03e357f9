package conn

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
)

// A user who can write in the folder can put a link in the socket's place, just after it was made.
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
