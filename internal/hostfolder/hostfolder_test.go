package hostfolder

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

func ownerOf(t *testing.T, path string) int {
	t.Helper()
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	return int(info.Sys().(*syscall.Stat_t).Uid)
}

// If the servers get another user, it gets the folders of the pods that are published, and a folder of its own for its servers. Nothing that the user before has
// made changes its owner: root would follow that user's links.
func TestMakeForAnotherUser(t *testing.T) {
	t.Parallel()
	const before, after = 65532, 1000700001
	if os.Geteuid() != 0 {
		t.Skip("only root can give a folder to another user")
	}
	dir := t.TempDir()
	f, k := Folder(dir+"/h"), Key("0123")
	for range 2 { // a restart changes nothing
		if err := f.Make(before); err != nil {
			t.Fatal(err)
		}
	}
	v := Volume{ID: "csi-1", Target: "/k/pods/u/1", Pod: Pod{Namespace: "shop", Name: "web", UID: "u"}}
	if err := errors.Join(f.MakePod(k, before), f.Describe(v, before)); err != nil {
		t.Fatal(err)
	}
	outside := filepath.Join(dir, "outside")
	if err := os.WriteFile(outside, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, link := range []string{f.Server(before) + "/run.lock", f.Pod(k) + "/locksidecar.sock"} {
		if err := os.Symlink(outside, link); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Make(after); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]int{
		f.Pod(k): after, f.Server(after): after, f.Server(before): before, string(f): 0, outside: 0, f.Server(before) + "/run.lock": 0, f.Pod(k) + "/locksidecar.sock": 0,
	} {
		if got := ownerOf(t, path); got != want {
			t.Errorf("%s belongs to %d, want %d", path, got, want)
		}
	}
	if info, err := os.Lstat(f.description(v.Key())); err != nil || int(info.Sys().(*syscall.Stat_t).Gid) != after || info.Mode().Perm() != fs.FileMode(0o640) {
		t.Errorf("the new user cannot read a description: %v, %v", info, err)
	}
	if info, err := os.Stat(f.Server(after)); err != nil || info.Mode().Perm() != fs.FileMode(0o700) {
		t.Errorf("%v, %v", info, err)
	}
}
