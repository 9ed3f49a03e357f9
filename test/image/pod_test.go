package image

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
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
		// Times are so long that a lock that is free sooner was freed by an event, and not
		// by time.
		"LOCKSIDECAR_TTL": "1h", "LOCKSIDECAR_DRAIN_TIMEOUT": "1h",
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
	must(p.t, os.Chmod(self, 0o755)) // whatever the umask was when it was built
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
