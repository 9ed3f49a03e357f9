package proxy

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// startAt tries to start a server on a path.
func startAt(t *testing.T, path string, change ...func(*Config)) (*Server, error) {
	t.Helper()
	cfg := testConfig(newSpy(t).Manager, slog.New(slog.DiscardHandler), path)
	for _, c := range change {
		c(&cfg)
	}
	s := New(cfg)
	t.Cleanup(s.Stop)
	err := s.Start(context.Background())
	return s, err
}

func wantError(t *testing.T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatal("no error")
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q does not contain %q", err, part)
		}
	}
}

func TestFailedStartLeavesNothing(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	path := filepath.Join(t.TempDir(), "s")
	_, err = startAt(t, path, func(c *Config) { c.TCPAddr = ln.Addr().String() })
	wantError(t, err, "LOCKSIDECAR_TCP_ADDR")
	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Error("the socket is still there")
	}
	_, err = startAt(t, path, func(c *Config) { c.AdminAddr = ln.Addr().String() })
	wantError(t, err, "LOCKSIDECAR_ADMIN_ADDR")
	s, err := startAt(t, path)
	if err != nil {
		t.Fatal(err)
	}
	if s.Start(context.Background()) == nil {
		t.Error("started twice")
	}
}

// Proves: threat other user
func TestAllowedUIDs(t *testing.T) {
	me := uint32(os.Getuid())
	f := start(t, func(c *Config) { c.AllowedUIDs = []uint32{me + 1, me} })
	f.dial().do("GET", "/v1", "").want(t, 200, "")
	for _, c := range f.conns.Conns() {
		if !c.Peer.Known || c.Peer.UID != me || c.Peer.PID != int32(os.Getpid()) {
			t.Errorf("%+v", c.Peer)
		}
	}
	f = start(t, func(c *Config) { c.AllowedUIDs = []uint32{me + 1} })
	c := f.dial()
	a := c.do("PUT", "/v1/locks/a", "")
	a.want(t, 403, "forbidden")
	a.detail(t, "uid", "LOCKSIDECAR_ALLOWED_UIDS")
	c.wantEnd()
	if f.locks.sessions() != 0 {
		t.Error("a session was opened")
	}
}

// Claimed runs when the path is this process's and nobody is served yet.
func TestClaimed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	calls := 0
	claimed := func(c *Config) { c.Claimed = func() { calls++ } }
	if _, err := startAt(t, path, claimed); err != nil || calls != 1 {
		t.Errorf("told %v, called %d times", err, calls)
	}
	if _, err := startAt(t, path, claimed); err == nil || calls != 1 {
		t.Errorf("told %v, called %d times: the path is somebody else's", err, calls)
	}
}

// The line "serving" has addresses that can be copied.
func TestStartLogsAddresses(t *testing.T) {
	var said logs
	f := start(t, func(c *Config) {
		c.Logger, c.AdminAddr = slog.New(slog.NewJSONHandler(&said, nil)), "127.0.0.1:0"
	})
	if want := `"tcp":null,"admin":"` + f.AdminAddr().String() + `"`; !strings.Contains(said.text(), want) {
		t.Errorf("%s does not say %s", said.text(), want)
	}
}
