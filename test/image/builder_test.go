package image

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestBuilder: whichever of the builders is installed is taken; docker's client alone is none.
func TestBuilder(t *testing.T) {
	for _, test := range []struct{ installed, want string }{
		{"podman", "podman build"},
		{"buildah", "buildah build"},
		{"buildah podman", "buildah build"},
		{"docker=1 podman", "podman build"},
		{"docker=0 podman", "docker build"},
	} {
		folder := t.TempDir()
		for program := range strings.FieldsSeq(test.installed) {
			name, code, _ := strings.Cut(program, "=")
			must(t, os.WriteFile(filepath.Join(folder, name), []byte("#!/bin/sh\nexit "+code+"\n"), 0o755))
		}
		for _, name := range []string{"bash", "sh", "git", "go", "dirname", "grep"} {
			path, err := exec.LookPath(name)
			must(t, err)
			must(t, os.Symlink(path, filepath.Join(folder, name)))
		}
		printed := command(t, "env", "PATH="+folder, filepath.Join(folder, "bash"), "-c", "release/build-image.sh 2>&1")
		if !strings.Contains(printed, test.want+" ") {
			t.Errorf("with %s: want %s\n%s", test.installed, test.want, printed)
		}
	}
}
