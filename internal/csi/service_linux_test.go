package csi

import (
	"context"
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
	"github.com/locksidecar/locksidecar/internal/testing/await"
	"github.com/locksidecar/locksidecar/internal/testing/logtest"
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

// A description that cannot be read stops the publish of no other pod.
func TestUnreadableDescription(t *testing.T) {
	asRoot(t, unreadableDescription)
}

func unreadableDescription(t *testing.T, dir string) {
	t.Helper()
	s := &service{Config: Config{Folder: hostfolder.Folder(dir + "/h"), User: os.Getuid(), Log: slog.New(slog.DiscardHandler)}}
	if err := s.Folder.Make(s.User); err != nil {
		t.Fatal(err)
	}
	v := hostfolder.Volume{ID: "one", Target: "/k/pods/u-1/one", Pod: hostfolder.Pod{Namespace: "shop", Name: "web", UID: "u-1"}}
	bad := s.Folder.Volumes() + "/" + string(hostfolder.KeyOf("bad", "/k")) + ".json"
	if err := os.WriteFile(bad, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.describe(v); err != nil {
		t.Errorf("another pod's: %v", err)
	}
}

// A damaged description is removed when no pod has the volume mounted, by the sweep, or by the kubelet's next publish. One that is mounted stays, and so does one that another
// version may have written.
// Proves: promise 10
func TestDamagedDescriptions(t *testing.T) {
	asRoot(t, damagedDescriptions)
}

func damagedDescriptions(t *testing.T, dir string) {
	t.Helper()
	s := &service{Config: Config{Folder: hostfolder.Folder(dir + "/h"), User: os.Getuid(), Kubelet: dir + "/k", Log: slog.New(slog.DiscardHandler)}}
	if err := errors.Join(s.Folder.Make(s.User), os.MkdirAll(s.pods()+"/whole", 0o755)); err != nil {
		t.Fatal(err)
	}
	volume := func(id string) hostfolder.Volume {
		return hostfolder.Volume{ID: id, Target: s.pods() + "/" + id + "/volumes/kubernetes.io~csi/locks/mount", Pod: hostfolder.Pod{Namespace: "shop", Name: id, UID: id}}
	}
	file := func(k hostfolder.Key, end string) string { return s.Folder.Volumes() + "/" + string(k) + end }
	described := func(id, as string) hostfolder.Key {
		k := volume(id).Key()
		if err := errors.Join(s.Folder.MakePod(k, s.User), os.WriteFile(file(k, ".json"), []byte(as), 0o600)); err != nil {
			t.Fatal(err)
		}
		return k
	}
	whole := volume("whole")
	if err := errors.Join(s.Folder.MakePod(whole.Key(), s.User), s.describe(whole)); err != nil {
		t.Fatal(err)
	}
	gone := []hostfolder.Key{described("half", `{"id":"half","tar`), described("empty", ""), described("zeros", "\x00\x00")}
	stay := []hostfolder.Key{whole.Key(), described("later", `{"version":2,"volumes":["later"]}`), described("other form", `{"pod":"shop/web"}`)}
	mounted := described("mounted", "{")
	unfinished := file(volume("unfinished").Key(), ".json.new")
	if err := errors.Join(os.WriteFile(unfinished, []byte("{"), 0o600), bind(s.Folder.Pod(mounted), mkdir(t, dir+"/target"))); err != nil {
		t.Fatal(err)
	}

	s.sweepOnce()
	is := func(path string) bool { _, err := os.Lstat(path); return err == nil }
	for _, k := range gone {
		if s.Folder.IsPublished(k) || is(s.Folder.Pod(k)) {
			t.Errorf("the damaged description %s is left", k)
		}
	}
	for _, k := range append(stay, mounted) {
		if !s.Folder.IsPublished(k) || !is(s.Folder.Pod(k)) {
			t.Errorf("the description %s is removed", k)
		}
	}
	if is(unfinished) {
		t.Error("an unfinished description is left")
	}
	if err := s.describe(volume("mounted")); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "delete the pod") {
		t.Errorf("a publish of the mounted volume: %v", err)
	}
	// The pod ends.
	if err := unmountAll(dir + "/target"); err != nil {
		t.Fatal(err)
	}
	if s.sweepOnce(); s.Folder.IsPublished(mounted) || is(s.Folder.Pod(mounted)) {
		t.Error("the description is left when the volume is not mounted any more")
	}

	// The kubelet's publish says again whose the volume is. It does not wait for the sweep.
	again := volume("again")
	described("again", "{")
	if err := s.describe(again); err != nil {
		t.Fatal(err)
	}
	if v, err := s.Folder.Read(again.Key()); err != nil || v.Pod != again.Pod {
		t.Errorf("described as %+v, %v", v, err)
	}
}

// A plugin that waits for the end of another one changes nothing: the folders may have another user while that one serves.
func TestWaitingPluginChangesNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	lock, err := os.Create(dir + "/csi.lock")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lock.Close() }()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	var log logtest.Log
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- Run(ctx, Config{Folder: hostfolder.Folder(dir), User: os.Getuid(), Kubelet: dir, Log: slog.New(slog.NewTextHandler(&log, nil))})
	}()
	await.Until(t, "the wait", func() bool { return strings.Contains(log.String(), "waiting for its end") })
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("%v, %v", entries, err)
	}
	stop()
	if err := await.Receive(t, ended, "the end"); err != nil {
		t.Error(err)
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
