package csi

import (
	"errors"
	"fmt"
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
	if err := unix.Mount(folder, mkdir(t, target), "", unix.MS_BIND, ""); err != nil { // a mount without the flags
		t.Fatal(err)
	}
	for range 2 {
		if err := bind(folder, target); err != nil {
			t.Fatal(err)
		}
	}
	if mounts, err := os.ReadFile("/proc/self/mountinfo"); err != nil || strings.Count(string(mounts), target) != 1 {
		t.Errorf("mounted again and again (%v):\n%s", err, mounts)
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

func mkdir(t *testing.T, path string) string {
	t.Helper()
	if err := os.Mkdir(path, 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestTheNodeSeesItReadOnly: the plugin mounts in its container, and the node, where the kubelet is, gets a copy. It never gets one that may be written.
// Proves: threat forged pod
func TestTheNodeSeesItReadOnly(t *testing.T) {
	asRoot(t, nodeSeesReadOnly)
}

func nodeSeesReadOnly(t *testing.T, dir string) {
	t.Helper()
	folder, pods := mkdir(t, dir+"/folder"), mkdir(t, dir+"/pods")
	for _, step := range []struct {
		source, kind string
		flags        uintptr
	}{{"none", "tmpfs", 0}, {"", "", unix.MS_SHARED}} { // as the folder of the kubelet that the plugin has
		if err := unix.Mount(step.source, pods, step.kind, step.flags, ""); err != nil {
			t.Fatal(err)
		}
	}
	node := exec.CommandContext(t.Context(), "cat")
	node.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	ends, err := node.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := node.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := errors.Join(ends.Close(), node.Wait()); err != nil {
			t.Error(err)
		}
	}()
	target := pods + "/target"
	if err := bind(folder, target); err != nil {
		t.Fatal(err)
	}
	mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", node.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if fields := strings.Fields(line); fields[4] == target {
			if !strings.HasPrefix(fields[5], "ro,nosuid,nodev,noexec") {
				t.Errorf("the node sees it with %s", fields[5])
			}
			return
		}
	}
	t.Errorf("the node does not see it:\n%s", mounts)
}
