package image

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
)

const (
	sidecarUser = 65532
	appUser     = 1000
	socket      = "/run/locksidecar/locksidecar.sock"
	storeFile   = "/etc/locksidecar/store-url"
)

// pod is the containers of one pod and what they share.
type pod struct {
	t      *testing.T
	groups []int
	// socketFolder and storeFolder are the volumes, on the node.
	socketFolder, storeFolder string
	root                      string // the sidecar's
	env                       map[string]string
}

var pods atomic.Int64

// newPod makes a pod on the database. More variables of the sidecar may follow.
func newPod(t *testing.T, database string, v emptyDir, env ...string) *pod {
	t.Helper()
	p := &pod{t: t, root: native(t).tree(t), env: map[string]string{
		"LOCKSIDECAR_SOCKET": socket, "LOCKSIDECAR_STORE_URL_FILE": storeFile, "LOCKSIDECAR_SOCKET_MODE": "0666",
		"LOCKSIDECAR_TTL":         "1h", // whatever is free sooner is so because of what happened
		"KUBERNETES_SERVICE_HOST": "10.0.0.1", "POD_NAME": "pod-" + strconv.FormatInt(pods.Add(1), 10),
	}}
	for _, variable := range env {
		name, value, _ := strings.Cut(variable, "=")
		p.env[name] = value
	}
	if v.fsGroup != 0 {
		p.groups = []int{v.fsGroup}
	}
	p.socketFolder = v.make(t)
	p.storeFolder = secret(t, database, 0o444)
	folderAt(t, filepath.Join(p.root, filepath.Dir(storeFile))) // a runtime makes the places where it mounts
	return p
}

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

// exec starts a command in the sidecar's container, as its main process or as a probe.
func (p *pod) exec(args ...string) *process {
	p.t.Helper()
	var env []string
	for name, value := range p.env {
		env = append(env, name+"="+value)
	}
	return container{
		Root: p.root, UID: sidecarUser, Groups: p.groups, Args: append([]string{"/locksidecar"}, args...), Env: env,
		Volumes: []volume{
			{Source: p.socketFolder, Target: filepath.Dir(socket)},
			{Source: p.storeFolder, Target: filepath.Dir(storeFile), ReadOnly: true},
		},
	}.start(p.t)
}

// sidecar starts the sidecar and waits until it grants locks.
func (p *pod) sidecar() *process {
	p.t.Helper()
	s := p.exec("serve")
	s.await(`"msg":"ready"`)
	return s
}

// app starts an app: another user, with the socket's folder read-only, and an image of its own.
func (p *pod) app() *app {
	p.t.Helper()
	root := folderAt(p.t, filepath.Join(p.t.TempDir(), "app"))
	folderAt(p.t, filepath.Join(root, filepath.Dir(socket)))
	must(p.t, os.WriteFile(filepath.Join(root, "app"), nil, 0o600))
	self, err := os.Executable()
	must(p.t, err)
	a := &app{process: container{
		Root: root, UID: appUser, Groups: p.groups, Args: []string{"/app"},
		Env: []string{appEnv + "=yes", "LOCKSIDECAR_SOCKET=" + socket},
		Volumes: []volume{
			{Source: p.socketFolder, Target: filepath.Dir(socket), ReadOnly: true},
			{Source: self, Target: "/app", ReadOnly: true},
		},
	}.start(p.t)}
	a.hear().want(p.t, 0, "started")
	return a
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

// files are the names in the socket's folder.
func (p *pod) files() []string {
	p.t.Helper()
	entries, err := os.ReadDir(p.socketFolder)
	must(p.t, err)
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}

// TestAppWithoutPrivileges: an app of any user gets locks through a folder that it can only
// read, and nothing else.
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

// TestImageAlone: without any volume, as `docker run` starts it, it serves; and its commands
// work beside it.
func TestImageAlone(t *testing.T) {
	p := newPod(t, "memory://", emptyDir{})
	alone := container{Root: p.root, UID: sidecarUser, Env: []string{"LOCKSIDECAR_STORE_URL=memory://"}}
	writable := filepath.Dir(socket)
	alone.Volumes = []volume{{Source: filepath.Join(p.root, writable), Target: writable}}
	run := func(args ...string) *process {
		c := alone
		c.Args = append([]string{"/locksidecar"}, args...)
		return c.start(t)
	}
	succeeds := func(says string, args ...string) {
		t.Helper()
		if r := run(args...); r.code() != 0 || !strings.Contains(r.output(), says) {
			t.Errorf("%s: code %d, %s", args, r.code(), r.output())
		}
	}
	succeeds("locksidecar "+version+", go", "version")
	run("serve").await(`"msg":"ready"`)
	succeeds("healthy", "health")
	succeeds("ready", "health", "--ready")
	succeeds("", "acquire", "k", "--ttl", "60s")
	if again := run("acquire", "k", "--ttl", "60s"); again.code() != 75 {
		t.Errorf("acquired twice: code %d, %s", again.code(), again.output())
	}
}

// TestStartupProbe: as the kubelet asks, by a command in the sidecar's container. It is well
// as soon as its socket is bound, though its database is away; not before.
func TestStartupProbe(t *testing.T) {
	p := newPod(t, "postgres://nobody@127.0.0.1:1/none", emptyDir{})
	well := func() int { return p.exec("health").code() }
	if code := well(); code != 69 {
		t.Errorf("before the start: code %d, want 69", code)
	}
	s := p.exec("serve")
	s.await(`"msg":"serving"`)
	if code := well(); code != 0 {
		t.Errorf("bound, and the database is away: code %d, want 0", code)
	}
	if code := p.exec("health", "--ready").code(); code != 69 {
		t.Errorf("ready without a database: code %d, want 69", code)
	}
	p.app().try("k").want(t, 503, "store_unavailable")
	s.signal(syscall.SIGKILL)
	s.code()
	if code := well(); code != 69 {
		t.Errorf("dead, its socket left behind: code %d, want 69", code)
	}
}
