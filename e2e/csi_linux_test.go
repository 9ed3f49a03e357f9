package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/locksidecar/locksidecar/internal/hostfolder"
)

// plugin is a running `locksidecar csi`, as the kubelet sees it. Its mounts are its own: only its process, and what looks through
// /proc/PID/root, has them.
type plugin struct {
	*sidecar
	dir  string
	user int
}

func (p *plugin) folder() hostfolder.Folder { return hostfolder.Folder(p.dir + "/h") }

// unshared is a process with mounts of its own, in which it is root.
func unshared() *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	if os.Geteuid() != 0 {
		attr.Cloneflags = syscall.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	return attr
}

// serverUser is the user of `locksidecar node` in tests: of an own user namespace only root is there.
func serverUser() int {
	if os.Geteuid() != 0 {
		return 0
	}
	return hostfolder.User
}

// startPlugin starts `locksidecar csi` on a folder, in which an earlier one may have run.
func startPlugin(t *testing.T, dir string, patience time.Duration) *plugin {
	t.Helper()
	return startPluginFor(t, dir, patience, serverUser())
}

// startPluginFor starts a plugin for a server of another user.
func startPluginFor(t *testing.T, dir string, patience time.Duration, user int) *plugin {
	t.Helper()
	for _, path := range []string{"/k", "/k/plugins_registry", "/k/pods", "/k/pods/of-others"} {
		if err := os.MkdirAll(dir+path, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	p := &plugin{dir: dir, user: user}
	p.sidecar = &sidecar{t: t, log: &logBuffer{}, ended: make(chan struct{}), socket: dir + "/k/plugins_registry/csi.locksidecar.dev-reg.sock"}
	p.cmd = exec.Command(binary, "csi", "--folder", string(p.folder()), "--kubelet", dir+"/k", "--node", "node-1",
		"--user", fmt.Sprint(p.user), "--patience", patience.String())
	p.cmd.Env = append(cleanEnv(), "LOCKSIDECAR_LOG_LEVEL=debug")
	p.cmd.Stdout, p.cmd.Stderr = p.log, p.log
	p.cmd.SysProcAttr = unshared()
	p.run()
	p.await("the plugin", func() bool {
		nc, err := net.Dial("unix", p.socket)
		if err == nil {
			_ = nc.Close()
		}
		return err == nil
	})
	return p
}

// kubelet is a client of the plugin's socket.
func (p *plugin) kubelet() (csi.NodeClient, *grpc.ClientConn) {
	p.t.Helper()
	c, err := grpc.NewClient("unix://"+p.socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = c.Close() })
	return csi.NewNodeClient(c), c
}

// podVolume is a volume of a pod, with what the kubelet says about it.
type podVolume struct {
	p               *plugin
	namespace, name string
	uid, id         string
}

func (p *plugin) volume(namespace, name string) podVolume {
	uid := namespace + "-" + name
	return podVolume{p, namespace, name, uid, "csi-" + uid}
}

func (v podVolume) target() string {
	return v.p.dir + "/k/pods/" + v.uid + "/volumes/kubernetes.io~csi/locks/mount"
}

func (v podVolume) key() hostfolder.Key { return hostfolder.KeyOf(v.id, v.target()) }

func (v podVolume) request() *csi.NodePublishVolumeRequest {
	return &csi.NodePublishVolumeRequest{
		VolumeId: v.id, TargetPath: v.target(), Readonly: true,
		VolumeCapability: &csi.VolumeCapability{
			AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
			AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		},
		VolumeContext: map[string]string{
			"csi.storage.k8s.io/pod.namespace": v.namespace, "csi.storage.k8s.io/pod.name": v.name, "csi.storage.k8s.io/pod.uid": v.uid,
			"csi.storage.k8s.io/serviceAccount.name": "default", "csi.storage.k8s.io/ephemeral": "true",
		},
	}
}

// makePod makes the pod's folders, as the kubelet does before it publishes a volume.
func (v podVolume) makePod() {
	v.p.t.Helper()
	if err := os.MkdirAll(filepath.Dir(v.target()), 0o755); err != nil {
		v.p.t.Fatal(err)
	}
}

func (v podVolume) tryPublish(change ...func(*csi.NodePublishVolumeRequest)) error {
	v.p.t.Helper()
	v.makePod()
	req := v.request()
	for _, c := range change {
		c(req)
	}
	node, _ := v.p.kubelet()
	ctx, cancel := context.WithTimeout(v.p.t.Context(), patience)
	defer cancel()
	_, err := node.NodePublishVolume(ctx, req)
	return err
}

func (v podVolume) publish() {
	v.p.t.Helper()
	if err := v.tryPublish(); err != nil {
		v.p.t.Fatalf("publishing the volume of %s/%s: %v", v.namespace, v.name, err)
	}
}

func (v podVolume) tryUnpublish() error {
	node, _ := v.p.kubelet()
	ctx, cancel := context.WithTimeout(v.p.t.Context(), patience)
	defer cancel()
	_, err := node.NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: v.id, TargetPath: v.target()})
	return err
}

func (v podVolume) unpublish() {
	v.p.t.Helper()
	if err := v.tryUnpublish(); err != nil {
		v.p.t.Fatalf("unpublishing the volume of %s/%s: %v", v.namespace, v.name, err)
	}
}

// mounted is where the pod's mount is seen from outside.
func (v podVolume) mounted() string {
	return fmt.Sprintf("/proc/%d/root%s", v.p.cmd.Process.Pid, v.target())
}

// isMounted reports whether the pod's folder is mounted at the target.
func (v podVolume) isMounted() bool {
	one, err := os.Stat(v.p.folder().Pod(v.key()))
	if err != nil {
		return false
	}
	other, err := os.Stat(v.mounted())
	return err == nil && os.SameFile(one, other)
}

// listen is a server of the pod that only listens.
func (v podVolume) listen() (end func()) {
	v.p.t.Helper()
	done, served := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(served)
		for {
			if _, err := v.p.folder().Read(v.key()); err == nil {
				if ln, err := net.Listen("unix", v.p.folder().Socket(v.key())); err == nil {
					<-done
					_ = ln.Close()
					return
				}
			}
			select {
			case <-done:
				return
			case <-time.After(time.Millisecond): // the pause of a poll
			}
		}
	}()
	var ended bool
	end = func() {
		if !ended {
			ended = true
			close(done)
			<-served
		}
	}
	v.p.t.Cleanup(end)
	return end
}

// leavesNothing fails if anything of the volume is left.
func (v podVolume) leavesNothing() {
	v.p.t.Helper()
	for _, path := range []string{v.mounted(), v.p.folder().Pod(v.key()), v.p.folder().Volumes() + "/" + string(v.key()) + ".json"} {
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			v.p.t.Errorf("%s is left: %v", path, err)
		}
	}
}

func refusedWith(t *testing.T, err error, code codes.Code, part string) {
	t.Helper()
	if status.Code(err) != code || !strings.Contains(fmt.Sprint(err), part) {
		t.Errorf("got %v, want %s with %q", err, code, part)
	}
}

// TestPluginRegisters: the kubelet learns the plugin's name and the node's, and that it has only volumes of pods.
func TestPluginRegisters(t *testing.T) {
	t.Parallel()
	p := startPlugin(t, folder(t), patience)
	node, conn := p.kubelet()
	info, err := registration.NewRegistrationClient(conn).GetInfo(t.Context(), &registration.InfoRequest{})
	if err != nil || info.Type != registration.CSIPlugin || info.Name != "csi.locksidecar.dev" || info.Endpoint != "" || fmt.Sprint(info.SupportedVersions) != "[1.0.0]" {
		t.Errorf("registration: %v, %v", info, err)
	}
	if about, err := csi.NewIdentityClient(conn).GetPluginInfo(t.Context(), &csi.GetPluginInfoRequest{}); err != nil || about.Name != info.Name {
		t.Errorf("plugin info: %v, %v", about, err)
	}
	if named, err := node.NodeGetInfo(t.Context(), &csi.NodeGetInfoRequest{}); err != nil || named.NodeId != "node-1" {
		t.Errorf("node info: %v, %v", named, err)
	}
	if can, err := node.NodeGetCapabilities(t.Context(), &csi.NodeGetCapabilitiesRequest{}); err != nil || len(can.Capabilities) > 0 {
		t.Errorf("capabilities: %v, %v", can, err)
	}
	if _, err := registration.NewRegistrationClient(conn).NotifyRegistrationStatus(t.Context(), &registration.RegistrationStatus{PluginRegistered: true}); err != nil {
		t.Error(err)
	}
	if code := p.stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if _, err := os.Lstat(p.socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is left, so the kubelet does not notice the end: %v", err)
	}
}

// TestPublish: a pod's folder is mounted when its socket is there. Repeats change nothing, also after a restart of the plugin.
func TestPublish(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	p := startPlugin(t, dir, 300*time.Millisecond)
	v, other := p.volume("shop", "web-0"), p.volume("pay", "web-0")
	refusedWith(t, v.tryPublish(), codes.Unavailable, "no `locksidecar node` listens for this pod")
	if v.isMounted() {
		t.Error("the folder is mounted, and nobody listens in it")
	}
	end := v.listen()
	other.listen()
	v.publish()
	v.publish()
	other.publish()
	if !v.isMounted() || !other.isMounted() {
		t.Error("the folders are not mounted")
	}
	before, err := p.folder().Read(v.key())
	want := hostfolder.Pod{Namespace: "shop", Name: "web-0", UID: "shop-web-0", ServiceAccount: "default"}
	if err != nil || before.Pod != want || before.ID != v.id || before.Target != v.target() {
		t.Errorf("described as %+v, %v", before, err)
	}
	var flags unix.Statfs_t
	if err := unix.Statfs(v.mounted(), &flags); err != nil || flags.Flags&unix.ST_NOSUID == 0 || flags.Flags&unix.ST_NODEV == 0 || flags.Flags&unix.ST_NOEXEC == 0 || flags.Flags&unix.ST_RDONLY == 0 {
		t.Errorf("flags of the mount: %x, %v", flags.Flags, err)
	}
	// The kubelet, which is root, makes the folders of a subPath.
	if err := os.Mkdir(v.mounted()+"/made-by-root", 0o755); !errors.Is(err, unix.EROFS) {
		t.Errorf("root may write through the mount: %v", err)
	}
	two := v.request()
	two.VolumeId, two.TargetPath = "csi-second", strings.Replace(v.target(), "/locks/", "/second/", 1)
	node, _ := p.kubelet()
	_, err = node.NodePublishVolume(t.Context(), two)
	refusedWith(t, err, codes.InvalidArgument, "two volumes")
	if mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", p.cmd.Process.Pid)); err != nil || strings.Count(string(mounts), v.target()) != 1 {
		t.Errorf("the folder must be mounted once: %v\n%s", err, mounts)
	}

	// The kubelet uses the ids of static pods' volumes again, at another path.
	same := v
	same.uid = "static"
	same.listen()
	same.publish()
	if !same.isMounted() || same.key() == v.key() || !v.isMounted() {
		t.Error("two volumes with one id are mixed up")
	}

	// The publication says whether the volume was unpublished meanwhile.
	v.publish()
	if again, err := p.folder().Read(v.key()); err != nil || again != before {
		t.Errorf("the repeated publish described %+v, %v", again, err)
	}
	end()
	v.unpublish()
	v.leavesNothing()
	v.unpublish()
	if !other.isMounted() {
		t.Error("the other pod's folder is unmounted")
	}
	v.listen()
	v.publish()
	if again, err := p.folder().Read(v.key()); err != nil || again.Publication == before.Publication || !v.isMounted() {
		t.Errorf("published again: %+v, %v", again, err)
	}
}

// TestForgedPods: a volume is for the pod of its path, as the kubelet names it.
// Proves: threat forged pod
func TestForgedPods(t *testing.T) {
	t.Parallel()
	p := startPlugin(t, folder(t), 100*time.Millisecond)
	v := p.volume("shop", "web-0")
	of := func(key, value string) func(*csi.NodePublishVolumeRequest) {
		return func(r *csi.NodePublishVolumeRequest) { r.VolumeContext["csi.storage.k8s.io/"+key] = value }
	}
	at := func(path string) func(*csi.NodePublishVolumeRequest) {
		return func(r *csi.NodePublishVolumeRequest) { r.TargetPath = path }
	}
	pods := p.dir + "/k/pods/"
	for name, c := range map[string]struct {
		change func(*csi.NodePublishVolumeRequest)
		want   string
	}{
		"another pod's uid":      {of("pod.uid", "pay-web-0"), "podInfoOnMount"},
		"no uid":                 {func(r *csi.NodePublishVolumeRequest) { delete(r.VolumeContext, "csi.storage.k8s.io/pod.uid") }, "podInfoOnMount"},
		"no namespace":           {of("pod.namespace", ""), "pod.namespace"},
		"a namespace as a path":  {of("pod.namespace", "../pay"), "pod.namespace"},
		"two lines":              {of("serviceAccount.name", "a\nb"), "serviceAccount.name"},
		"a persistent volume":    {of("ephemeral", "false"), "only an inline volume"},
		"writable":               {func(r *csi.NodePublishVolumeRequest) { r.Readonly = false }, "readOnly: true"},
		"a device":               {func(r *csi.NodePublishVolumeRequest) { r.VolumeCapability.AccessType = nil }, "file system"},
		"an id as a path":        {func(r *csi.NodePublishVolumeRequest) { r.VolumeId = "../../x" }, "volume's id"},
		"no id":                  {func(r *csi.NodePublishVolumeRequest) { r.VolumeId = "" }, "volume's id"},
		"a path elsewhere":       {at("/etc"), "target path"},
		"a path out of the pods": {at(pods + "../../x/volumes/kubernetes.io~csi/locks/mount"), "target path"},
		"the uid ..":             {at(pods + "../volumes/kubernetes.io~csi/locks/mount"), "target path"},
		"a longer path":          {at(v.target() + "/deeper"), "target path"},
		"a trailing slash":       {at(v.target() + "/"), "target path"},
		"another kind of volume": {at(pods + v.uid + "/volumes/kubernetes.io~empty-dir/locks/mount"), "target path"},
	} {
		t.Run(name, func(t *testing.T) {
			refusedWith(t, v.tryPublish(c.change), codes.InvalidArgument, c.want)
		})
	}
	for _, bad := range []*csi.NodeUnpublishVolumeRequest{
		{VolumeId: v.id, TargetPath: "/proc"}, {VolumeId: "a/b", TargetPath: v.target()}, {VolumeId: v.id, TargetPath: pods + "../pods/x/volumes/kubernetes.io~csi/y/mount"},
	} {
		node, _ := p.kubelet()
		_, err := node.NodeUnpublishVolume(t.Context(), bad)
		refusedWith(t, err, codes.InvalidArgument, "must be")
	}
	if all, err := p.folder().Published(); err != nil || len(all) > 0 {
		t.Errorf("described: %v, %v", all, err)
	}
}

// TestKilledPlugin: after a kill -9 at any step, the kubelet's next call finishes a publish or takes it back. What is left of a pod that is gone
// is removed.
func TestKilledPlugin(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	p := startPlugin(t, dir, 100*time.Millisecond)
	half, gone, whole := p.volume("a", "half"), p.volume("a", "gone"), p.volume("a", "whole")
	whole.listen()
	whole.publish()
	for _, v := range []podVolume{half, gone} {
		refusedWith(t, v.tryPublish(), codes.Unavailable, "listens") // described, and not mounted
	}
	if err := os.RemoveAll(dir + "/k/pods/" + gone.uid); err != nil {
		t.Fatal(err)
	}
	p.kill()
	unknown := p.folder().Pod("0123456789abcdef0123456789abcdef") // killed between the folder and its description
	damaged := p.folder().Volumes() + "/fedcba9876543210fedcba9876543210.json"
	if err := errors.Join(os.Mkdir(unknown, 0o755), os.WriteFile(damaged, []byte(`{"id":"csi`), 0o640)); err != nil {
		t.Fatal(err)
	}

	// The mounts of the killed process are gone with its namespace, as after a reboot.
	p = startPlugin(t, dir, patience)
	half.p, gone.p, whole.p = p, p, p
	eventually(t, "what is left of the pod that is gone to be removed", func() bool {
		_, err := p.folder().Read(gone.key())
		_, folder := os.Lstat(unknown)
		_, description := os.Lstat(damaged)
		return errors.Is(err, os.ErrNotExist) && errors.Is(folder, os.ErrNotExist) && errors.Is(description, os.ErrNotExist)
	})
	gone.leavesNothing()
	whole.publish()
	half.listen()
	half.publish()
	if !half.isMounted() || !whole.isMounted() {
		t.Error("not mounted")
	}
	// An unpublish that was killed after the unmount, and after the description.
	if err := errors.Join(p.folder().Forget(half.key()), os.RemoveAll(p.folder().Pod(whole.key()))); err != nil {
		t.Fatal(err)
	}
	half.unpublish()
	half.leavesNothing()
	whole.unpublish()
	whole.leavesNothing()
	if _, err := os.Stat(dir + "/k/pods/of-others"); err != nil {
		t.Error(err)
	}
}

// TestStaleMount: if the folder of a mount was removed, a publish mounts the new one in its place.
func TestStaleMount(t *testing.T) {
	t.Parallel()
	p := startPlugin(t, folder(t), patience)
	v := p.volume("a", "b")
	end := v.listen()
	v.publish()
	end()
	if err := os.RemoveAll(p.folder().Pod(v.key())); err != nil {
		t.Fatal(err)
	}
	v.listen()
	v.publish()
	if !v.isMounted() {
		t.Error("the old folder is mounted")
	}
	if mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", p.cmd.Process.Pid)); err != nil || strings.Count(string(mounts), v.target()) != 1 {
		t.Errorf("mounted more than once: %v\n%s", err, mounts)
	}
}

// TestFolderIsPrivate: only root and the server's user enter the folder, and only root writes descriptions.
func TestFolderIsPrivate(t *testing.T) {
	t.Parallel()
	p := startPlugin(t, folder(t), patience)
	v := p.volume("a", "b")
	v.listen()
	v.publish()
	f := p.folder()
	for path, want := range map[string]struct {
		mode  os.FileMode
		owner int
	}{
		string(f): {0o710, 0}, f.Volumes(): {0o750, 0}, filepath.Dir(f.Pod(v.key())): {0o710, 0}, f.Server(p.user): {0o700, p.user},
		f.Pod(v.key()): {0o755, p.user}, f.Volumes() + "/" + string(v.key()) + ".json": {0o640, 0},
	} {
		info, err := os.Lstat(path)
		if err != nil {
			t.Fatal(err)
		}
		owner := info.Sys().(*syscall.Stat_t)
		if os.Geteuid() == 0 && (int(owner.Uid) != want.owner || int(owner.Gid) != p.user) || info.Mode().Perm() != want.mode {
			t.Errorf("%s: mode %o, owner %d, group %d", path, info.Mode().Perm(), owner.Uid, owner.Gid)
		}
	}
	var described map[string]any
	text, _ := os.ReadFile(f.Volumes() + "/" + string(v.key()) + ".json")
	if err := json.Unmarshal(text, &described); err != nil || len(described) != 4 {
		t.Errorf("%s: %v", text, err)
	}
}
