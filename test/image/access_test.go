package image

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// TestAppWithoutPrivileges: an app of any user gets locks through a folder that it can only
// read, and nothing else.
// Proves: threat other container
func TestAppWithoutPrivileges(t *testing.T) {
	p := newPod(t, cluster.NewDatabase(t), emptyDir{})
	p.sidecar()
	a := p.app()
	a.release("k", a.acquire("k"))

	before := p.files()
	for _, command := range []string{
		"create /run/locksidecar/x", "remove " + socket, "rename " + socket + " /run/locksidecar/x",
		"chmod " + socket, "create " + socket + ".instance", "create /x",
	} {
		a.do(command).want(t, 0, "read-only file system")
	}
	a.do("read", socket+".instance").want(t, 0, "permission denied")
	a.do("read", storeFile).want(t, 0, "no such file")
	if after := p.files(); !slices.Equal(before, after) {
		t.Errorf("the folder had %q, now %q", before, after)
	}
}

// TestOwnFiles: a root folder that cannot be written to is enough, and the Secret's file
// must be readable by all: none of it belongs to the sidecar's user.
// Proves: threat other container, threat inside the sidecar
func TestOwnFiles(t *testing.T) {
	p := newPod(t, cluster.NewDatabase(t), emptyDir{})
	p.storeFolder = secret(t, "memory://", 0o440)
	refused := p.exec("serve")
	if code := refused.code(); code == 0 || !strings.Contains(refused.output(), storeFile) {
		t.Errorf("a Secret of mode 0440: code %d, %s", code, refused.output())
	}
	p.storeFolder = secret(t, "memory://", 0o444)
	s := p.sidecar()
	for _, name := range p.files() {
		if !strings.HasPrefix(name, filepath.Base(socket)) {
			t.Errorf("the folder has %q", name)
		}
	}
	s.signal(syscall.SIGTERM)
	if code := s.code(); code != 0 {
		t.Errorf("code %d", code)
	}
}

// TestSocketMode: 0660 is for pods whose fsGroup both containers have; without one it keeps
// the app out. The mount is the permission, so 0666 is what injection sets.
// Proves: threat other container, threat other user
func TestSocketMode(t *testing.T) {
	for _, test := range []struct {
		mode    string
		volume  emptyDir
		refused bool
	}{
		{"0660", emptyDir{}, true},
		{"0660", emptyDir{disk: true}, true},
		{"0660", emptyDir{fsGroup: 2000}, false},
		{"0660", emptyDir{disk: true, fsGroup: 2000}, false},
		{"0666", emptyDir{}, false},
		{"0666", emptyDir{disk: true}, false},
		{"0666", emptyDir{fsGroup: 2000}, false},
	} {
		t.Run(fmt.Sprintf("%s %+v", test.mode, test.volume), func(t *testing.T) {
			p := newPod(t, "memory://", test.volume, "LOCKSIDECAR_SOCKET_MODE="+test.mode)
			p.sidecar()
			a := p.app()
			if test.refused {
				a.try("k").want(t, 0, "permission denied")
				return
			}
			a.acquire("k")
		})
	}
}
