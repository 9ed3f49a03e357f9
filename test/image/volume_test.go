package image

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// emptyDir is a volume as the kubelet makes it.
type emptyDir struct {
	disk    bool // else medium: Memory
	fsGroup int  // 0: none
}

// make makes a folder of mode 0777, and in memory, a tmpfs of 1Mi there, whose own mode is
// 1777 (pkg/volume/emptydir, setupDir and setupTmpfs). With an fsGroup, it gets that group,
// and rwxrws--- besides (pkg/volume, changeFilePermission).
func (v emptyDir) make(t *testing.T) string {
	t.Helper()
	folder := folderAt(t, filepath.Join(t.TempDir(), "socket"))
	must(t, os.Chmod(folder, 0o777))
	if !v.disk {
		must(t, syscall.Mount("tmpfs", folder, "tmpfs", 0, "size=1048576"))
		t.Cleanup(func() { must(t, syscall.Unmount(folder, syscall.MNT_DETACH)) })
	}
	if v.fsGroup != 0 {
		info, err := os.Stat(folder)
		must(t, err)
		must(t, os.Lchown(folder, -1, v.fsGroup))
		must(t, os.Chmod(folder, info.Mode()|0o660|os.ModeSetgid|0o110))
	}
	return folder
}

// TestEmptyDir: the modes that are seen in clusters.
func TestEmptyDir(t *testing.T) {
	for v, want := range map[emptyDir]string{
		{}:                          "dtrwxrwxrwx",
		{fsGroup: 2000}:             "dgtrwxrwxrwx",
		{disk: true}:                "drwxrwxrwx",
		{disk: true, fsGroup: 2000}: "dgrwxrwxrwx",
	} {
		if info, err := os.Stat(v.make(t)); err != nil || info.Mode().String() != want {
			t.Errorf("%+v: %s, want %s (%v)", v, info.Mode(), want, err)
		}
	}
}

// secret is a Secret's volume: the file is a link into a folder that is replaced as one, all
// belongs to root.
func secret(t *testing.T, content string, mode os.FileMode) string {
	t.Helper()
	folder := folderAt(t, filepath.Join(t.TempDir(), "secret"))
	data := folderAt(t, filepath.Join(folder, "..2026_01_01"))
	must(t, os.WriteFile(filepath.Join(data, "store-url"), []byte(content), mode))
	must(t, os.Chmod(filepath.Join(data, "store-url"), mode))
	must(t, os.Symlink("..2026_01_01", filepath.Join(folder, "..data")))
	must(t, os.Symlink("..data/store-url", filepath.Join(folder, "store-url")))
	return folder
}

func folderAt(t *testing.T, path string) string {
	t.Helper()
	must(t, os.MkdirAll(path, 0o755))
	return path
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
