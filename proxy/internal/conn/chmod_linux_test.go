package conn

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// On kernels that know no call for it the mode is set all the same, and of the socket alone:
// a folder with a default ACL has a socket whose mode the umask did not make.
func TestModeOnOldKernels(t *testing.T) {
	dir := t.TempDir()
	victim, link, socket := filepath.Join(dir, "victim"), filepath.Join(dir, "link"), filepath.Join(dir, "socket")
	if err := os.WriteFile(victim, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("victim", link); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{link, victim} {
		if err := chmodOpened(path, 0o666); !errors.Is(err, errNotTheSocket) {
			t.Errorf("%s: %v", path, err)
		}
	}
	stale(t, socket)
	if err := chmodOpened(socket, 0o640); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]os.FileMode{victim: 0o600, socket: 0o640} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: mode %v, %v, want %v", path, info.Mode(), err, want)
		}
	}
}
