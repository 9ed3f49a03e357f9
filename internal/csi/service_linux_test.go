package csi

import (
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/locksidecar/locksidecar/internal/hostfolder"
)

// A pod has one volume, because each has a socket with limits of its own. Its own publish may be repeated.
func TestOneVolumeAPod(t *testing.T) {
	asRoot(t, oneVolumeAPod)
}

func oneVolumeAPod(t *testing.T, dir string) {
	t.Helper()
	s := &service{Config: Config{Folder: hostfolder.Folder(dir + "/h"), User: os.Getuid(), Log: slog.New(slog.DiscardHandler)}}
	if err := s.Folder.Make(s.User); err != nil {
		t.Fatal(err)
	}
	volume := func(id, uid string) hostfolder.Volume {
		return hostfolder.Volume{ID: id, Target: "/k/pods/" + uid + "/" + id, Pod: hostfolder.Pod{Namespace: "shop", Name: "web", UID: uid}}
	}
	one := volume("one", "u-1")
	for _, again := range []string{"first", "repeated"} {
		if err := s.describe(one); err != nil {
			t.Fatalf("%s: %v", again, err)
		}
	}
	if err := s.describe(volume("two", "u-1")); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "two volumes") {
		t.Errorf("a second volume: %v", err)
	}
	if err := s.describe(volume("one", "u-2")); err != nil {
		t.Errorf("another pod's: %v", err)
	}
}

const childVariable = "LOCKSIDECAR_TEST_MOUNTS_IN"

// TestMountIsReadOnly: root cannot write through the mount either, because a kubelet makes the folders of a subPath there. A server still makes its socket in the
// folder itself.
func TestMountIsReadOnly(t *testing.T) {
	asRoot(t, mountsReadOnly)
}

// asRoot runs a part of a test in a process with mounts of its own, in which it is root. That process is this test once more.
func asRoot(t *testing.T, part func(t *testing.T, dir string)) {
	t.Helper()
	if dir := os.Getenv(childVariable); dir != "" {
		part(t, dir)
		return
	}
	child := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
	child.Env = append(os.Environ(), childVariable+"="+t.TempDir())
	child.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	if os.Geteuid() != 0 {
		child.SysProcAttr.Cloneflags = syscall.CLONE_NEWUSER
		child.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		child.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	if out, err := child.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("%v\n%s", err, out)
	}
}

func mountsReadOnly(t *testing.T, dir string) {
	t.Helper()
	folder, target := dir+"/folder", dir+"/target"
	if err := os.Mkdir(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	for range 2 { // a repeat sets the flags again
		if err := bind(folder, target); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(target+"/made-by-root", 0o755); !errors.Is(err, unix.EROFS) {
		t.Errorf("root may write through the mount: %v", err)
	}
	if err := os.WriteFile(folder+"/socket", nil, 0o666); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(target + "/socket"); err != nil {
		t.Errorf("the mount does not show the folder: %v", err)
	}
	if err := unmountAll(target); err != nil {
		t.Error(err)
	}
}
