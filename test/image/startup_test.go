package image

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

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
