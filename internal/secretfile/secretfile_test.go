package secretfile_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/locksidecar/locksidecar/internal/secretfile"
)

// Proves: threat tcp
func TestRefusesWhatEveryUserMayRead(t *testing.T) {
	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte("s3cret"), 0o600); err != nil {
		t.Fatal(err)
	}
	for mode, allowed := range map[os.FileMode]bool{0o600: true, 0o400: true, 0o640: true, 0o440: true, 0o644: false, 0o604: false, 0o602: false, 0o601: false} {
		if err := os.Chmod(file, mode); err != nil {
			t.Fatal(err)
		}
		content, err := secretfile.Read(file)
		if allowed && (err != nil || string(content) != "s3cret") {
			t.Errorf("%04o: %q, %v", mode, content, err)
		}
		if !allowed && (err == nil || content != nil || !strings.Contains(err.Error(), file) || !strings.Contains(err.Error(), "chmod 640")) {
			t.Errorf("%04o: %q, %v", mode, content, err)
		}
	}
}

// A file that is no secret must not block or fill the sidecar.
func TestRefusesWhatIsNoFile(t *testing.T) {
	folder := t.TempDir()
	pipe, large := filepath.Join(folder, "pipe"), filepath.Join(folder, "large")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(large, make([]byte, 70<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{pipe, folder, large, filepath.Join(folder, "none"), "/dev/zero"} {
		if _, err := secretfile.Read(path); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", path, err)
		}
	}
}
