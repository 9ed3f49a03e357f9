package config_test

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/config"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/postgres"
)

func TestDefaults(t *testing.T) {
	got, warnings, err := config.Load(config.FromMap(nil))
	if err != nil || len(warnings) != 1 || !strings.Contains(warnings[0], "only the apps of this sidecar exclude each other") {
		t.Fatalf("err %v, warnings %q", err, warnings)
	}
	_, warnings, err = config.Load(config.FromMap(map[string]string{"LOCKSIDECAR_STORE_URL": "memory://"}))
	if err != nil || len(warnings) != 0 {
		t.Fatalf("memory:// is asked for: err %v, warnings %q", err, warnings)
	}
	if got.Store.Kind != config.Memory || got.Store.Reveal() != "memory://" {
		t.Errorf("store: %v", got.Store)
	}
	want := config.Config{
		Socket: "/run/locksidecar/locksidecar.sock", SocketMode: 0o660,
		Store: got.Store, Namespace: "default", Pod: "test-host",
		TTL: 15 * time.Second, RenewInterval: 5 * time.Second,
		StoreTimeout: 5 * time.Second, PoolMaxConns: 4,
		Listen: postgres.ListenAuto, PollInterval: time.Second,
		CacheSize: 10_000, CacheTTL: 100 * time.Millisecond, BatchMax: 1000,
		MaxSessions: 1000, MaxLocksPerSession: 100_000, MaxWaiters: 10_000, MaxBody: 64 << 10,
		DrainTimeout: 25 * time.Second, AutoMigrate: true, NodeFolder: "/run/locksidecar-node",
		LogLevel: slog.LevelInfo, LogFormat: config.LogJSON,
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

// Each variable is set alone. A good value must arrive in the field; a bad one
// must be refused with the variable's name and the value.
// Proves: threat tcp
func TestEachVariable(t *testing.T) {
	longest := "/" + strings.Repeat("s", 106)
	type value struct {
		set  string
		want any // nil: refused
	}
	tests := map[string]struct {
		field  func(config.Config) any
		values []value
	}{
		"SOCKET": {func(c config.Config) any { return c.Socket }, []value{
			{"/tmp/a.sock", "/tmp/a.sock"},
			{longest, longest},
			{longest + "s", nil},
			{"relative.sock", nil},
			{"/tmp/", nil},
		}},
		"SOCKET_MODE": {func(c config.Config) any { return c.SocketMode }, []value{
			{"0600", fs.FileMode(0o600)},
			{"777", fs.FileMode(0o777)},
			{"0o660", nil},
			{"0460", nil},
			{"1660", nil},
			{"0680", nil},
			{"-1", nil},
		}},
		"ALLOWED_UIDS": {func(c config.Config) any { return c.AllowedUIDs }, []value{
			{"1000", []uint32{1000}},
			{"1001, 0,1001", []uint32{0, 1001}},
			{"4294967294", []uint32{4294967294}},
			{"4294967295", nil},
			{"1000,", nil},
			{"root", nil},
			{"-1", nil},
		}},
		"TCP_ADDR": {func(c config.Config) any { return c.TCPAddr }, []value{
			{"127.0.0.1:7624", "127.0.0.1:7624"},
			{"127.9.9.9:1", "127.9.9.9:1"},
			{"[::1]:7624", "[::1]:7624"},
			{"localhost:7624", "127.0.0.1:7624"},
			{"127.0.0.1:65535", "127.0.0.1:65535"},
			{"127.0.0.1:65536", nil},
			{"0.0.0.0:7624", nil},
			{":7624", nil},
			{"10.0.0.1:7624", nil},
			{"[::]:7624", nil},
			{"example.com:7624", nil},
			{"127.0.0.1", nil},
			{"[::1%lo]:1", nil},
		}},
		"ADMIN_ADDR": {func(c config.Config) any { return c.AdminAddr }, []value{
			{":7625", ":7625"},
			{"0.0.0.0:7625", "0.0.0.0:7625"},
			{"[::1]:0", "[::1]:0"},
			{"7625", nil},
			{"host:http", nil},
			{"http://host:1", nil},
		}},
		"NAMESPACE": {func(c config.Config) any { return c.Namespace }, []value{
			{"team-ä", "team-ä"},
			{strings.Repeat("n", 255), strings.Repeat("n", 255)},
			{strings.Repeat("n", 256), nil},
			{"a\nb", nil},
			{"\xff", nil},
		}},
		"POD": {func(c config.Config) any { return c.Pod }, []value{
			{"web-0", "web-0"},
			{strings.Repeat("p", 253), strings.Repeat("p", 253)},
			{strings.Repeat("p", 254), nil},
			{"a\u0085b", nil},
		}},
		"TTL": {func(c config.Config) any { return [2]time.Duration{c.TTL, c.RenewInterval} }, []value{
			{"500ms", [2]time.Duration{500 * time.Millisecond, 500 * time.Millisecond / 3}},
			{"24h", [2]time.Duration{24 * time.Hour, 8 * time.Hour}},
			{"499ms", nil},
			{"24h1ns", nil},
			{"15", nil},
			{"-15s", nil},
		}},
		"RENEW_INTERVAL": {func(c config.Config) any { return c.RenewInterval }, []value{
			{"7500ms", 7500 * time.Millisecond},
			{"50ms", 50 * time.Millisecond},
			{"49ms", nil},
			{"7501ms", nil},
			{"soon", nil},
		}},
		"STORE_TIMEOUT": {func(c config.Config) any { return c.StoreTimeout }, []value{
			{"100ms", 100 * time.Millisecond},
			{"5m", 5 * time.Minute},
			{"99ms", nil},
			{"5m1s", nil},
		}},
		"POOL_MAX_CONNS": {func(c config.Config) any { return c.PoolMaxConns }, []value{
			{"3", 3}, {"1000", 1000}, {"2", nil}, {"1001", nil}, {"four", nil},
		}},
		"POSTGRES_LISTEN": {func(c config.Config) any { return c.Listen }, []value{
			{"auto", postgres.ListenAuto},
			{"always", postgres.ListenAlways},
			{"never", postgres.ListenNever},
			{"sometimes", nil},
		}},
		"POSTGRES_POLL_INTERVAL": {func(c config.Config) any { return c.PollInterval }, []value{
			{"50ms", 50 * time.Millisecond}, {"1m", time.Minute}, {"49ms", nil}, {"61s", nil},
		}},
		"FAILOVER": {func(c config.Config) any { return c.Failover }, []value{
			{"quiet", store.FailoverQuiet}, {"quick", store.FailoverQuick}, {"auto", nil},
		}},
		"CACHE_SIZE": {func(c config.Config) any { return c.CacheSize }, []value{
			{"1", 1}, {"10000000", 10_000_000}, {"0", nil}, {"10000001", nil},
		}},
		"CACHE_TTL": {func(c config.Config) any { return c.CacheTTL }, []value{
			{"0", time.Duration(0)}, {"1m", time.Minute}, {"-1ms", nil}, {"61s", nil},
		}},
		"KEEP": {func(c config.Config) any { return c.Keep }, []value{
			{"0", time.Duration(0)}, {"200ms", 200 * time.Millisecond}, {"2s", 2 * time.Second}, {"-1ms", nil}, {"2001ms", nil}, {"200", nil},
		}},
		"BATCH_MAX": {func(c config.Config) any { return c.BatchMax }, []value{
			{"1", 1}, {"100000", 100_000}, {"0", nil}, {"100001", nil},
		}},
		"MAX_SESSIONS": {func(c config.Config) any { return c.MaxSessions }, []value{
			{"1", 1}, {"10000000", 10_000_000}, {"0", nil}, {"10000001", nil},
		}},
		"MAX_LOCKS_PER_SESSION": {func(c config.Config) any { return c.MaxLocksPerSession }, []value{
			{"1", 1}, {"0", nil}, {"1e3", nil},
		}},
		"MAX_WAITERS": {func(c config.Config) any { return c.MaxWaiters }, []value{
			{"1", 1}, {"0", nil}, {"-1", nil},
		}},
		"MAX_BODY": {func(c config.Config) any { return c.MaxBody }, []value{
			{"1KiB", 1024},
			{"1024", 1024},
			{"2048B", 2048},
			{"16MiB", 16 << 20},
			{"1023", nil},
			{"17MiB", nil},
			{"64KB", nil},
			{"64 KiB", nil},
			{"KiB", nil},
			{"9223372036854775807MiB", nil},
		}},
		"DRAIN_TIMEOUT": {func(c config.Config) any { return c.DrainTimeout }, []value{
			{"0s", time.Duration(0)}, {"24h", 24 * time.Hour}, {"-1s", nil}, {"25h", nil},
		}},
		"AUTO_MIGRATE": {func(c config.Config) any { return c.AutoMigrate }, []value{
			{"false", false}, {"0", false}, {"TRUE", true}, {"1", true}, {"no", nil},
		}},
		"ALLOW_FORCE": {func(c config.Config) any { return c.AllowForce }, []value{
			{"true", true}, {"false", false}, {"yes", nil},
		}},
		"NODE_FOLDER": {func(c config.Config) any { return c.NodeFolder }, []value{
			{"/run/n", "/run/n"}, {"/" + strings.Repeat("n", 39), "/" + strings.Repeat("n", 39)}, {"/" + strings.Repeat("n", 40), nil}, {"relative", nil}, {"/run/../n", nil},
		}},
		"NODE_POLICY_FILE": {func(c config.Config) any { return c.NodePolicyFile }, []value{{"/etc/p", "/etc/p"}, {"relative", nil}}},
		"LOG_LEVEL": {func(c config.Config) any { return c.LogLevel }, []value{
			{"debug", slog.LevelDebug}, {"WARN", slog.LevelWarn}, {"error", slog.LevelError}, {"trace", nil}, {"info+1", nil},
		}},
		"LOG_FORMAT": {func(c config.Config) any { return c.LogFormat }, []value{
			{"text", config.LogText}, {"json", config.LogJSON}, {"xml", nil},
		}},
		"TCP_TLS_CERT_FILE": {func(c config.Config) any { return c.TCPCertFile }, []value{{"relative", nil}, {"/etc/c", nil}}}, // see TestTCPThatOthersReach
		"TCP_TLS_KEY_FILE":  {func(c config.Config) any { return c.TCPKeyFile }, []value{{"relative", nil}, {"/etc/k", nil}}},
		"TCP_TOKEN_FILE":    {func(c config.Config) any { return c.TCPTokenFile }, []value{{"relative", nil}, {"/etc/t", nil}}},
		"TCP_INSECURE": {func(c config.Config) any { return c.TCPInsecure }, []value{
			{"true", true}, {"false", false}, {"yes", nil},
		}},
		"POSTGRES_LISTEN_URL":      {func(c config.Config) any { return c.ListenURL.Reveal() }, []value{{"postgres://u:p@h/d", nil}}}, // see TestListenURL
		"POSTGRES_LISTEN_URL_FILE": {func(c config.Config) any { return c.ListenURL.Reveal() }, []value{{"/etc/url", nil}}},
		"STORE_URL": {func(c config.Config) any { return c.Store.Reveal() }, []value{
			{"memory://", "memory://"},
			{"postgres://u:p@h/d", "postgres://u:p@h/d"},
			{"postgresql://h1:5432,h2:5433/d?target_session_attrs=read-write", "postgresql://h1:5432,h2:5433/d?target_session_attrs=read-write"},
			{"memory", nil},
			{"memory://x", nil},
			{"mysql://h/d", nil},
			{"host=h dbname=d", nil},
			{"postgres://h:notaport/d", nil},
		}},
	}
	for _, name := range config.Variables() {
		if _, ok := tests[strings.TrimPrefix(name, config.Prefix)]; !ok && name != "LOCKSIDECAR_STORE_URL_FILE" {
			t.Errorf("%s is not tested", name)
		}
	}
	for variable, test := range tests {
		full := config.Prefix + variable
		for _, v := range test.values {
			t.Run(variable+"="+v.set, func(t *testing.T) {
				cfg, _, err := config.Load(config.FromMap(map[string]string{full: v.set}))
				if v.want == nil {
					refused(t, err, full)
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				if got := test.field(cfg); !reflect.DeepEqual(got, v.want) {
					t.Errorf("got %v, want %v", got, v.want)
				}
			})
		}
	}
}

func refused(t *testing.T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatal("was accepted")
	}
	for _, part := range append(parts, "allowed: ") {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the error does not say %q: %v", part, err)
		}
	}
}

// TestADurationWithoutAUnit: the error says what is missing, for each variable that is a duration.
func TestADurationWithoutAUnit(t *testing.T) {
	for _, name := range []string{"TTL", "RENEW_INTERVAL", "STORE_TIMEOUT", "POSTGRES_POLL_INTERVAL", "CACHE_TTL", "KEEP", "DRAIN_TIMEOUT"} {
		_, _, err := config.Load(config.FromMap(map[string]string{config.Prefix + name: "15"}))
		refused(t, err, name, `"15"`, "a duration from ", "(the unit is missing, as in 15s or 15ms)")
	}
	for _, other := range []string{"soon", "15 s", "-", "1h1"} {
		if hint := config.MissingUnit(other); hint != "" {
			t.Errorf("%q:%s", other, hint)
		}
	}
}

// Proves: threat tcp
func TestRelationsNameBothVariables(t *testing.T) {
	tests := map[string]struct {
		env  map[string]string
		says []string
	}{
		"renewal too late": {
			map[string]string{"LOCKSIDECAR_TTL": "10s", "LOCKSIDECAR_RENEW_INTERVAL": "5001ms"},
			[]string{"LOCKSIDECAR_RENEW_INTERVAL", "5001ms", "LOCKSIDECAR_TTL", "10s"},
		},
		"tcp and uids": {
			map[string]string{"LOCKSIDECAR_TCP_ADDR": "127.0.0.1:7624", "LOCKSIDECAR_ALLOWED_UIDS": "1000"},
			[]string{"LOCKSIDECAR_TCP_ADDR", "127.0.0.1:7624", "LOCKSIDECAR_ALLOWED_UIDS", "1000", "LOCKSIDECAR_TCP_TOKEN_FILE"},
		},
		"others reach it without TLS": {
			map[string]string{"LOCKSIDECAR_TCP_ADDR": ":7624", "LOCKSIDECAR_TCP_TOKEN_FILE": "/t"},
			[]string{"LOCKSIDECAR_TCP_ADDR", `":7624"`, "LOCKSIDECAR_TCP_TLS_CERT_FILE", "LOCKSIDECAR_TCP_INSECURE=true"},
		},
		"others reach it with TLS, but without a token": {
			map[string]string{"LOCKSIDECAR_TCP_ADDR": "10.0.0.1:7624", "LOCKSIDECAR_TCP_TLS_CERT_FILE": "/c", "LOCKSIDECAR_TCP_TLS_KEY_FILE": "/k"},
			[]string{"LOCKSIDECAR_TCP_ADDR", `"10.0.0.1:7624"`, "LOCKSIDECAR_TCP_TOKEN_FILE"},
		},
		"insecure, and without a token": {
			map[string]string{"LOCKSIDECAR_TCP_ADDR": "[::]:7624", "LOCKSIDECAR_TCP_INSECURE": "true"},
			[]string{"LOCKSIDECAR_TCP_ADDR", `"[::]:7624"`, "LOCKSIDECAR_TCP_TOKEN_FILE"},
		},
		"a certificate without a key": {
			map[string]string{"LOCKSIDECAR_TCP_ADDR": "127.0.0.1:7624", "LOCKSIDECAR_TCP_TLS_CERT_FILE": "/c"},
			[]string{"LOCKSIDECAR_TCP_TLS_KEY_FILE", "LOCKSIDECAR_TCP_TLS_CERT_FILE", "/c"},
		},
		"a key without a certificate": {
			map[string]string{"LOCKSIDECAR_TCP_ADDR": "127.0.0.1:7624", "LOCKSIDECAR_TCP_TLS_KEY_FILE": "/k"},
			[]string{"LOCKSIDECAR_TCP_TLS_KEY_FILE", "/k", "LOCKSIDECAR_TCP_TLS_CERT_FILE"},
		},
		"TLS, and insecure": {
			map[string]string{
				"LOCKSIDECAR_TCP_ADDR": "127.0.0.1:7624", "LOCKSIDECAR_TCP_TLS_CERT_FILE": "/c", "LOCKSIDECAR_TCP_TLS_KEY_FILE": "/k",
				"LOCKSIDECAR_TCP_INSECURE": "true",
			},
			[]string{"LOCKSIDECAR_TCP_INSECURE", "LOCKSIDECAR_TCP_TLS_CERT_FILE"},
		},
		"a token for nothing": {
			map[string]string{"LOCKSIDECAR_TCP_TOKEN_FILE": "/t"},
			[]string{"LOCKSIDECAR_TCP_TOKEN_FILE", "/t", "LOCKSIDECAR_TCP_ADDR"},
		},
		"tcp and admin on one address": {
			map[string]string{"LOCKSIDECAR_TCP_ADDR": "127.0.0.1:7624", "LOCKSIDECAR_ADMIN_ADDR": "127.0.0.1:7624"},
			[]string{"LOCKSIDECAR_ADMIN_ADDR", "LOCKSIDECAR_TCP_ADDR"},
		},
		"two store URLs": {
			map[string]string{"LOCKSIDECAR_STORE_URL": "postgres://u:secret@h/d", "LOCKSIDECAR_STORE_URL_FILE": "/etc/url"},
			[]string{"LOCKSIDECAR_STORE_URL_FILE", "/etc/url", "LOCKSIDECAR_STORE_URL"},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			_, _, err := config.Load(config.FromMap(test.env))
			refused(t, err, test.says...)
			if strings.Contains(err.Error(), "secret") {
				t.Errorf("shows the password: %v", err)
			}
		})
	}
}

// Settings that are accepted for a TCP listener. Those on addresses that others reach have a token, and TLS or an explicit TCP_INSECURE.
// Proves: threat tcp
func TestTCPThatOthersReach(t *testing.T) {
	for _, env := range []map[string]string{
		{"TCP_ADDR": ":7624", "TCP_TOKEN_FILE": "/t", "TCP_TLS_CERT_FILE": "/c", "TCP_TLS_KEY_FILE": "/k"},
		{"TCP_ADDR": "10.0.0.1:7624", "TCP_TOKEN_FILE": "/t", "TCP_INSECURE": "true"},
		{"TCP_ADDR": "0.0.0.0:7624", "TCP_TOKEN_FILE": "/t", "TCP_INSECURE": "true", "ALLOWED_UIDS": "1000"},
		{"TCP_ADDR": "127.0.0.1:7624", "TCP_TOKEN_FILE": "/t"},
		{"TCP_ADDR": "[::1]:7624", "TCP_TLS_CERT_FILE": "/c", "TCP_TLS_KEY_FILE": "/k"},
	} {
		full := map[string]string{"LOCKSIDECAR_STORE_URL": "memory://"}
		for name, value := range env {
			full[config.Prefix+name] = value
		}
		cfg, _, err := config.Load(config.FromMap(full))
		if err != nil || cfg.TCPAddr != env["TCP_ADDR"] || cfg.TCPTokenFile != env["TCP_TOKEN_FILE"] || cfg.TCPCertFile != env["TCP_TLS_CERT_FILE"] || cfg.TCPKeyFile != env["TCP_TLS_KEY_FILE"] {
			t.Errorf("%v: %+v, %v", env, cfg, err)
		}
	}
}

// The URL of the listener needs a store that it can listen for.
func TestListenURL(t *testing.T) {
	file := filepath.Join(t.TempDir(), "url")
	if err := os.WriteFile(file, []byte("postgres://u:secret@direct/d\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	const pooled, direct = "postgres://u:p@pooler:6432/d", "postgres://u:secret@direct/d"
	load := func(env map[string]string) (config.Config, error) {
		cfg, _, err := config.Load(config.FromMap(env))
		return cfg, err
	}
	for _, listen := range []string{"", "auto", "always"} {
		for variable, value := range map[string]string{"LOCKSIDECAR_POSTGRES_LISTEN_URL": direct, "LOCKSIDECAR_POSTGRES_LISTEN_URL_FILE": file} {
			cfg, err := load(map[string]string{"LOCKSIDECAR_STORE_URL": pooled, variable: value, "LOCKSIDECAR_POSTGRES_LISTEN": listen})
			if err != nil || cfg.Store.Reveal() != pooled || cfg.ListenURL.Reveal() != direct || cfg.ListenURL.Kind != config.Postgres {
				t.Errorf("%s with POSTGRES_LISTEN=%s: %v, %v, %v", variable, listen, cfg.Store, cfg.ListenURL, err)
			}
		}
	}
	for name, test := range map[string]struct {
		env  map[string]string
		says []string
	}{
		"a store in memory": {
			map[string]string{"LOCKSIDECAR_STORE_URL": "memory://", "LOCKSIDECAR_POSTGRES_LISTEN_URL": direct},
			[]string{"LOCKSIDECAR_POSTGRES_LISTEN_URL is", "memory://"},
		},
		"a store in etcd": {
			map[string]string{"LOCKSIDECAR_STORE_URL": "etcd://etcd:2379", "LOCKSIDECAR_POSTGRES_LISTEN_URL": direct},
			[]string{"LOCKSIDECAR_POSTGRES_LISTEN_URL is", "etcd://etcd:2379"},
		},
		"in etcd": {
			map[string]string{"LOCKSIDECAR_STORE_URL": pooled, "LOCKSIDECAR_POSTGRES_LISTEN_URL": "etcd://etcd:2379"},
			[]string{`LOCKSIDECAR_POSTGRES_LISTEN_URL is "etcd://etcd:2379"; allowed: postgres://`},
		},
		"no store": {
			map[string]string{"LOCKSIDECAR_POSTGRES_LISTEN_URL_FILE": file},
			[]string{"LOCKSIDECAR_POSTGRES_LISTEN_URL_FILE is", file, "memory://"},
		},
		"in memory": {
			map[string]string{"LOCKSIDECAR_STORE_URL": pooled, "LOCKSIDECAR_POSTGRES_LISTEN_URL": "memory://"},
			[]string{`LOCKSIDECAR_POSTGRES_LISTEN_URL is "memory://"; allowed: postgres://`},
		},
		"never": {
			map[string]string{"LOCKSIDECAR_STORE_URL": pooled, "LOCKSIDECAR_POSTGRES_LISTEN_URL": direct, "LOCKSIDECAR_POSTGRES_LISTEN": "never"},
			[]string{"LOCKSIDECAR_POSTGRES_LISTEN_URL is", "LOCKSIDECAR_POSTGRES_LISTEN=never", "leave LOCKSIDECAR_POSTGRES_LISTEN unset"},
		},
		"both": {
			map[string]string{"LOCKSIDECAR_STORE_URL": pooled, "LOCKSIDECAR_POSTGRES_LISTEN_URL": direct, "LOCKSIDECAR_POSTGRES_LISTEN_URL_FILE": file},
			[]string{"LOCKSIDECAR_POSTGRES_LISTEN_URL_FILE is", file, "not together with LOCKSIDECAR_POSTGRES_LISTEN_URL"},
		},
		"another database's": {
			map[string]string{"LOCKSIDECAR_STORE_URL": pooled, "LOCKSIDECAR_POSTGRES_LISTEN_URL": "mysql://u:secret@h/d"},
			[]string{`LOCKSIDECAR_POSTGRES_LISTEN_URL is "mysql://u:***@h/d"; allowed: postgres://`},
		},
		"a missing file": {
			map[string]string{"LOCKSIDECAR_STORE_URL": pooled, "LOCKSIDECAR_POSTGRES_LISTEN_URL_FILE": file + ".missing"},
			[]string{"LOCKSIDECAR_POSTGRES_LISTEN_URL_FILE is", "no such file"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := load(test.env)
			refused(t, err, test.says...)
			if strings.Contains(err.Error(), "secret") || strings.Count(err.Error(), "allowed: ") != 1 {
				t.Errorf("shows the password, or more than one mistake: %v", err)
			}
		})
	}
}

func TestAllMistakesAtOnce(t *testing.T) {
	_, _, err := config.Load(config.FromMap(map[string]string{
		"LOCKSIDECAR_TTL": "never", "LOCKSIDECAR_SOCKET": "x", "LOCKSIDECAR_LOG_LEVEL": "loud",
	}))
	refused(t, err, "LOCKSIDECAR_TTL", `"never"`, "LOCKSIDECAR_SOCKET", `"x"`, "LOCKSIDECAR_LOG_LEVEL", `"loud"`)
	if n := strings.Count(err.Error(), "allowed: "); n != 3 {
		t.Errorf("%d mistakes, want 3: %v", n, err)
	}
}

func TestEmptyIsUnset(t *testing.T) {
	cfg, _, err := config.Load(config.FromMap(map[string]string{
		"LOCKSIDECAR_TTL": "", "LOCKSIDECAR_STORE_URL": "", "LOCKSIDECAR_STORE_URL_FILE": "",
	}))
	if err != nil || cfg.TTL != 15*time.Second || cfg.Store.Kind != config.Memory {
		t.Errorf("%+v, %v", cfg, err)
	}
}

func TestPodFallsBack(t *testing.T) {
	src := config.FromMap(map[string]string{"POD_NAME": "web-1"})
	if cfg, _, err := config.Load(src); err != nil || cfg.Pod != "web-1" {
		t.Errorf("pod %q, %v", cfg.Pod, err)
	}
	_, _, err := config.Load(config.FromMap(map[string]string{"POD_NAME": "a\tb"}))
	refused(t, err, "POD_NAME")
	src = config.FromMap(nil)
	src.Hostname = func() (string, error) { return "", errors.New("no name") }
	if _, _, err := config.Load(src); err == nil || !strings.Contains(err.Error(), "LOCKSIDECAR_POD") {
		t.Errorf("got %v", err)
	}
}

func TestKubernetesNeedsAStore(t *testing.T) {
	env := map[string]string{"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
	if _, _, err := config.Load(config.FromMap(env)); err == nil || !strings.Contains(err.Error(), "LOCKSIDECAR_STORE_URL is not set") {
		t.Errorf("got %v", err)
	}
	env["LOCKSIDECAR_STORE_URL"] = "memory://"
	if _, _, err := config.Load(config.FromMap(env)); err != nil {
		t.Errorf("memory on purpose: %v", err)
	}
}

func TestStoreURLFile(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	load := func(path string) (config.Config, error) {
		cfg, _, err := config.Load(config.FromMap(map[string]string{"LOCKSIDECAR_STORE_URL_FILE": path}))
		return cfg, err
	}
	cfg, err := load(write("good", "\n postgres://u:p@h/d \n"))
	if err != nil || cfg.Store.Reveal() != "postgres://u:p@h/d" || cfg.Store.Kind != config.Postgres {
		t.Errorf("%v, %v", cfg.Store, err)
	}
	_, err = load(write("empty", " \n"))
	refused(t, err, "LOCKSIDECAR_STORE_URL_FILE", "empty")
	_, err = load(filepath.Join(dir, "missing"))
	refused(t, err, "LOCKSIDECAR_STORE_URL_FILE", "missing")
	_, err = load(write("bad", "mongodb://u:secret@h"))
	refused(t, err, "LOCKSIDECAR_STORE_URL_FILE", "mongodb://")
	if strings.Contains(err.Error(), "secret") {
		t.Errorf("shows the password: %v", err)
	}
	_, err = load(write("ca", "postgres://u:secret@h/d?sslmode=verify-full&sslrootcert=/no/ca.crt&application_name=secret"))
	refused(t, err, "LOCKSIDECAR_STORE_URL_FILE", "sslrootcert: open /no/ca.crt: no such file")
	if strings.Contains(err.Error(), "secret") {
		t.Errorf("shows the password: %v", err)
	}
}

func TestUnknownVariablesWarnInOneLine(t *testing.T) {
	_, warnings, err := config.Load(config.FromMap(map[string]string{
		"LOCKSIDECAR_TLL": "s3cret", "LOCKSIDECAR_PORT_80_TCP": "x", "OTHER": "y", "LOCKSIDECAR_TTL": "1s",
		"LOCKSIDECAR_STORE_URL": "memory://", "LOCKSIDECAR_LISTEN": "never", // without POSTGRES_ it means nothing
	}))
	if err != nil || len(warnings) != 1 {
		t.Fatalf("%q, %v", warnings, err)
	}
	if !strings.HasSuffix(warnings[0], ": LOCKSIDECAR_LISTEN, LOCKSIDECAR_PORT_80_TCP, LOCKSIDECAR_TLL") {
		t.Errorf("got %q", warnings[0])
	}
}

// The clients have tests of the same rule.
func TestTheSocketIsInTheHomeWhereNoPodIs(t *testing.T) {
	for _, test := range []struct {
		variable, home string
		isPod          bool
		want           string
	}{
		{"", "/home/ada", true, config.DefaultSocket},
		{"", "/home/ada", false, "/home/ada/.locksidecar/locksidecar.sock"},
		{"", "", false, config.DefaultSocket},
		{"", "relative", false, config.DefaultSocket},
		{"/a", "/home/ada", true, "/a"},
		{"/a", "/home/ada", false, "/a"},
	} {
		src := config.FromMap(map[string]string{"LOCKSIDECAR_SOCKET": test.variable, "HOME": test.home})
		src.Exists = func(path string) bool { return test.isPod && path == "/run/locksidecar" }
		if got := config.Socket(src); got != test.want {
			t.Errorf("%+v: a command looks at %q", test, got)
		}
		if cfg, _, err := config.Load(src); err != nil || cfg.Socket != test.want {
			t.Errorf("%+v: the sidecar listens at %q, %v", test, cfg.Socket, err)
		}
	}
	src := config.FromMap(map[string]string{"HOME": "/" + strings.Repeat("h", 100)})
	src.Exists = func(string) bool { return false }
	if _, _, err := config.Load(src); err == nil || !strings.Contains(err.Error(), "LOCKSIDECAR_SOCKET is \"/hhh") || !strings.Contains(err.Error(), "in your home") {
		t.Errorf("a home that is too long: %v", err)
	}
}

// TestNode: a server of a node drains for an hour, and refuses what belongs to one socket.
func TestNode(t *testing.T) {
	t.Parallel()
	cfg, warnings, err := config.LoadNode(config.FromMap(map[string]string{"LOCKSIDECAR_SOCKET": "/of/the/image.sock", "LOCKSIDECAR_STORE_URL": "postgres://u@h/d"}))
	if err != nil || cfg.DrainTimeout != time.Hour || len(warnings) > 0 {
		t.Errorf("drains for %s, warns %q: %v", cfg.DrainTimeout, warnings, err)
	}
	if _, warnings, err := config.LoadNode(config.FromMap(map[string]string{"LOCKSIDECAR_STORE_URL": "memory://"})); err != nil || len(warnings) != 1 || !strings.Contains(warnings[0], "memory://") {
		t.Errorf("on memory:// it warns %q: %v", warnings, err)
	}
	if cfg, _, err := config.LoadNode(config.FromMap(map[string]string{"LOCKSIDECAR_DRAIN_TIMEOUT": "5s"})); err != nil || cfg.DrainTimeout != 5*time.Second {
		t.Errorf("drains for %s: %v", cfg.DrainTimeout, err)
	}
	for name, value := range map[string]string{"SOCKET_MODE": "0600", "ALLOWED_UIDS": "1", "TCP_ADDR": "127.0.0.1:1", "NAMESPACE": "n", "ALLOW_FORCE": "true"} {
		_, _, err := config.LoadNode(config.FromMap(map[string]string{"LOCKSIDECAR_" + name: value}))
		if err == nil || !strings.Contains(err.Error(), "LOCKSIDECAR_"+name) || !strings.Contains(err.Error(), "NODE_POLICY_FILE") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
