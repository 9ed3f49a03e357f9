package config

import (
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

var fuzzedVariables = []string{
	"SOCKET", "SOCKET_MODE", "ALLOWED_UIDS", "TCP_ADDR", "ADMIN_ADDR", "NAMESPACE", "POD", "TTL", "RENEW_INTERVAL", "STORE_TIMEOUT",
	"POOL_MAX_CONNS", "POSTGRES_LISTEN", "POSTGRES_POLL_INTERVAL", "CACHE_SIZE", "CACHE_TTL", "KEEP", "BATCH_MAX", "MAX_SESSIONS", "MAX_LOCKS_PER_SESSION",
	"MAX_WAITERS", "MAX_BODY", "DRAIN_TIMEOUT", "AUTO_MIGRATE", "ALLOW_FORCE", "LOG_LEVEL", "LOG_FORMAT",
}

// A value is refused by the name of its variable, or gives a configuration with which a
// sidecar can run.
func FuzzVariable(f *testing.F) {
	for i, value := range []string{
		"/run/x.sock", "0660", "1000, 1", "[::1]:7624", ":7625", "n", "p", "500ms", "250ms", "1h30m", "3", "auto", "1m", "1", "0",
		"1000", "+1", "010", "1e3", "64KiB", "24h", "TRUE", "0", "Debug", "text",
	} {
		f.Add(uint8(i), value)
	}
	f.Fuzz(func(t *testing.T, which uint8, value string) {
		name := Prefix + fuzzedVariables[int(which)%len(fuzzedVariables)]
		cfg, warnings, err := Load(FromMap(map[string]string{Prefix + "STORE_URL": "memory://", name: value}))
		if len(warnings) > 0 {
			t.Fatalf("%s=%q: %q", name, value, warnings)
		}
		if err != nil {
			if !strings.Contains(err.Error(), name) || !utf8.ValidString(err.Error()) {
				t.Fatalf("%s=%q: %v", name, value, err)
			}
			return
		}
		sound(t, cfg)
	})
}

func sound(t *testing.T, c Config) {
	t.Helper()
	within := func(what string, d, low, high time.Duration) {
		if d < low || d > high {
			t.Fatalf("%s is %s", what, d)
		}
	}
	within("TTL", c.TTL, 500*time.Millisecond, 24*time.Hour)
	within("renew interval", c.RenewInterval, 50*time.Millisecond, c.TTL/2)
	within("store timeout", c.StoreTimeout, 100*time.Millisecond, 5*time.Minute)
	within("poll interval", c.PollInterval, 50*time.Millisecond, time.Minute)
	within("cache TTL", c.CacheTTL, 0, time.Minute)
	within("keep", c.Keep, 0, 2*time.Second)
	within("drain timeout", c.DrainTimeout, 0, 24*time.Hour)
	for what, n := range map[string]int{
		"pool": c.PoolMaxConns - 2, "cache": c.CacheSize, "batch": c.BatchMax, "sessions": c.MaxSessions,
		"locks": c.MaxLocksPerSession, "waiters": c.MaxWaiters, "body": c.MaxBody,
	} {
		if n < 1 || n > 16<<20 {
			t.Fatalf("%s is %d", what, n)
		}
	}
	if c.SocketMode&0o600 != 0o600 || c.SocketMode&^fs.ModePerm != 0 || !strings.HasPrefix(c.Socket, "/") || len(c.Socket) > 107 {
		t.Fatalf("socket %q %o", c.Socket, c.SocketMode)
	}
	for _, name := range []string{c.Namespace, c.Pod} {
		if name == "" || len(name) > 255 || !utf8.ValidString(name) || strings.ContainsAny(name, "\x00\n\x1b") {
			t.Fatalf("name %q", name)
		}
	}
	if c.TCPAddr != "" {
		if at, err := netip.ParseAddrPort(c.TCPAddr); err != nil || !at.Addr().IsLoopback() { // nothing else is set
			t.Fatalf("TCP on %q", c.TCPAddr)
		}
	}
	if c.AdminAddr != "" {
		if _, _, err := net.SplitHostPort(c.AdminAddr); err != nil {
			t.Fatal(err)
		}
	}
}

// Wherever a piece of a password lands because a URL is not built as it should be,
// nobody sees it: not in the error, not in the log.
func FuzzStoreURL(f *testing.F) {
	for _, seed := range [][3]string{
		{"", "", ""},
		{"p@h/", "", "?sslmode=odd"},
		{"p@h?", "", ""},
		{"/", "@h/d#", ""},
		{"%zz", "", ":x"},
		{"", "@h:99999/d", ""},
		{"@h,", "", "?sslrootcert=/none"},
	} {
		f.Add(seed[0], seed[1], seed[2])
	}
	const secret = "s3cret"
	f.Fuzz(func(t *testing.T, before, after, behind string) {
		raw := "postgres://u:" + before + secret + after + "@h/d" + behind
		u, err := storeURL("STORE_URL", raw)
		shown := fmt.Sprint(u, err)
		if strings.Contains(shown, secret) {
			t.Fatalf("%q is shown as %s", raw, shown)
		}
		if err == nil && u.Reveal() != raw {
			t.Fatalf("%q became %q", raw, u.Reveal())
		}
	})
}
