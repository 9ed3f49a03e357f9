package config

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testing/certtest"
)

func TestRedact(t *testing.T) {
	tests := map[string]string{
		"memory://":                                       "memory://",
		"postgres://u:secret@h/d":                         "postgres://u:***@h/d",
		"postgres://u@h:5432,h2:5433/d":                   "postgres://u@h:5432,h2:5433/d",
		"postgres://u:se%40cret@[::1]:5432/d?x=1":         "postgres://u:***@[::1]:5432/d?***",
		"postgres:///d?host=/run/pg&password=secret":      "postgres:///d?***",
		"postgres://h/d?password=sec@ret":                 "postgres://***",
		"postgres://u:sec/ret@h/d":                        "postgres://***",
		"postgres://u:12/secret@h/d":                      "postgres://***",
		"postgres://u:12?secret@h/d":                      "postgres://***",
		"postgres://u:sec@ret@h/d":                        "postgres://u:***@h/d",
		"postgres://u:secret":                             "postgres://***",
		"host=h password=secret":                          "***",
		"u:secret@h":                                      "***",
		"postgres://secret:secret@h/d secret":             "postgres://***",
		"host=h password=secret sslrootcert=x://y secret": "***",
	}
	for url, want := range tests {
		if got := redact(url); got != want {
			t.Errorf("redact(%q) = %q, want %q", url, got, want)
		}
	}
}

// Proves: threat wrong settings
func TestRefusedURLsAreRedacted(t *testing.T) {
	for _, url := range []string{
		"postgres://u:s3cret@h:port/d",
		"postgres://u:s3cret@h/d?sslmode=odd",
		"postgres://h/d?password=s3cret&sslmode=odd",
		"postgres://u:s3%zzcret@h/d",
		"mysql://u:s3cret@h/d?ssl=s3cret",
		"mysql://u:s3%zzcret@h/d",
		"mysql://u:s3cret@h",
		"etcd://u:s3cret@h?ssl=s3cret",
		"etcd://u:s3%zzcret@h",
		"etcd://h,u:s3cret",
		"redis://u:s3cret@h?ssl=s3cret",
		"redis://u:s3%zzcret@h",
		"redis+sentinel://u:s3cret@h?sentinel_password=s3cret",
		"s3cret",
	} {
		_, err := storeURL("STORE_URL", url)
		if err == nil {
			t.Errorf("%q is accepted", url)
			continue
		}
		if text := err.Error(); strings.Contains(text, "s3") || !strings.Contains(text, "LOCKSIDECAR_STORE_URL") {
			t.Errorf("%q: %s", url, text)
		}
	}
}

func TestExplainsWhatIsNoSecret(t *testing.T) {
	for url, says := range map[string]string{
		"postgres://h:99999/d":                                   "invalid port",
		"postgres://u:s3@h:99999/d":                              "`postgres://u@h:99999/d`: invalid port",
		"postgres://u:s3@h:99999/d?x=s3":                         "`postgres://u@h:99999/d`: invalid port",
		"postgres://u:s3@h/d?x=s3&sslmode=s3":                    `parameter "sslmode": allowed is disable, allow, prefer, require`,
		"postgres://u:s3@h/d?connect_timeout=s3&sslmode=disable": `parameter "connect_timeout": allowed is a whole number of seconds`,
		"postgres://u:s3@h/d?sslcert=s3":                         `parameter "sslcert": allowed is a file, together with sslkey`,
	} {
		_, err := storeURL("STORE_URL", url)
		if err == nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "s3") {
			t.Errorf("%s: got %v", url, err)
		}
	}
}

// The message must not read as if the variable held what its file holds.
func TestNamesTheFileOfARefusedURL(t *testing.T) {
	file := filepath.Join(t.TempDir(), "url")
	if err := os.WriteFile(file, []byte("s3cret"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, _, err := Load(FromMap(map[string]string{"LOCKSIDECAR_STORE_URL_FILE": file}))
	want := fmt.Sprintf(`LOCKSIDECAR_STORE_URL_FILE names %q, whose URL is "***"; allowed: memory://`, file)
	if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "s3") {
		t.Errorf("got %v", err)
	}
}

func TestEtcd(t *testing.T) {
	for _, raw := range []string{"etcd://h", "etcds://u:secret@a:2379,b:2379/prefix"} {
		u, err := storeURL("STORE_URL", raw)
		if err != nil || u.Kind != Etcd || u.Reveal() != raw || strings.Contains(u.String(), "secret") {
			t.Errorf("%s: %v, %v", raw, u, err)
		}
	}
	_, err := storeURL("STORE_URL", "etcd://h?sslmode=require")
	if err == nil || !strings.Contains(err.Error(), "allowed are cacert, cert and key") {
		t.Errorf("an unknown parameter: %v", err)
	}
}

// The URLs of the examples for Kubernetes are allowed. The CA's file exists only in a pod.
func TestEtcdInKubernetes(t *testing.T) {
	for _, file := range []string{"deploy/etcd.yaml", "deploy/chart/ci/etcd.yaml"} {
		text, err := os.ReadFile(filepath.Join("..", "..", filepath.FromSlash(file)))
		if err != nil {
			t.Fatal(err)
		}
		found := regexp.MustCompile(`(?m)^ *store-?(?:url|URL): ([^?\n]+)(\?cacert=\S+)?$`).FindSubmatch(text)
		if found == nil {
			t.Fatalf("%s has no URL", file)
		}
		if u, err := storeURL("STORE_URL", string(found[1])); err != nil || u.Kind != Etcd {
			t.Errorf("%s: %v, %v", file, u, err)
		}
	}
}

func TestMySQL(t *testing.T) {
	for _, raw := range []string{"mysql://u@h/d", "mysql://u:secret@a:3306,b:3307/d?tls=true"} {
		u, err := storeURL("STORE_URL", raw)
		if err != nil || u.Kind != MySQL || u.Reveal() != raw || strings.Contains(u.String(), "secret") {
			t.Errorf("%s: %v, %v", raw, u, err)
		}
	}
	_, err := storeURL("STORE_URL", "mysql://u@h/d?sslmode=require")
	if err == nil || !strings.Contains(err.Error(), "parameter \"sslmode\"") {
		t.Errorf("an unknown parameter: %v", err)
	}
}

func TestLogsAreRedacted(t *testing.T) {
	u := StoreURL{Kind: Postgres, url: "postgres://u:secret@h/d"}
	var out strings.Builder
	slog.New(slog.NewJSONHandler(&out, nil)).Info("x", "store", u)
	if text := out.String() + u.String(); strings.Contains(text, "secret") || !strings.Contains(text, "u:***@h/d") {
		t.Errorf("got %s", text)
	}
}

// The URL is the file's present content, also after the kubelet has changed it.
func TestURLIsReadAgain(t *testing.T) {
	secret := certtest.MountFiles(t, map[string][]byte{"url": []byte("postgres://u:old@h/d\n")})
	cfg, _, err := Load(FromMap(map[string]string{"LOCKSIDECAR_STORE_URL_FILE": secret.File("url")}))
	if err != nil {
		t.Fatal(err)
	}
	for content, want := range map[string]string{
		"postgres://u:old@h/d\n":       "postgres://u:old@h/d",
		"postgres://u2:s3cret@h/d\r\n": "postgres://u2:s3cret@h/d",
		"":                             "",
		"\n":                           "",
		"s3cret":                       "",
		"postgres://u:s3cret@h:port/d": "",
	} {
		secret.Replace(map[string][]byte{"url": []byte(content)})
		got, err := cfg.Store.Again()
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v", content, got, err)
		}
		if err != nil && (strings.Contains(err.Error(), "s3") || !strings.Contains(err.Error(), "LOCKSIDECAR_STORE_URL_FILE")) {
			t.Errorf("%q: %v", content, err)
		}
		if cfg.Store.Reveal() != "postgres://u:old@h/d" {
			t.Errorf("%q: what was said at the start is %q", content, cfg.Store.Reveal())
		}
	}
	for what, put := range map[string]func(path string) error{
		"a pipe without a writer": func(path string) error { return syscall.Mkfifo(path, 0o600) },
		"no end":                  func(path string) error { return os.WriteFile(path, make([]byte, maxURLFile+1), 0o600) },
	} {
		path := filepath.Join(t.TempDir(), "url")
		if err := put(path); err != nil {
			t.Fatal(err)
		}
		u := StoreURL{Kind: Postgres, url: "postgres://u@h/d", variable: "STORE_URL_FILE", file: path}
		if got, err := u.Again(); err == nil || !strings.Contains(err.Error(), "LOCKSIDECAR_STORE_URL_FILE") {
			t.Errorf("%s: %q, %v", what, got, err)
		}
	}
	secret.Replace(nil)
	if got, err := cfg.Store.Again(); err == nil {
		t.Errorf("without a file: %q", got)
	}
}

// A URL that no file holds stays what it was; a pipe can be read once.
func TestURLIsNotReadAgain(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	go func() { _ = os.WriteFile(fifo, []byte("postgres://u@h/d"), 0) }()
	for variable, value := range map[string]string{"STORE_URL": "postgres://u@h/d", "STORE_URL_FILE": fifo} {
		cfg, _, err := Load(FromMap(map[string]string{Prefix + variable: value}))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := cfg.Store.Again(); got != "postgres://u@h/d" || err != nil {
			t.Errorf("%s: %q, %v", variable, got, err)
		}
	}
}

func TestShort(t *testing.T) {
	for in, want := range map[string]string{"24h": "24h", "1m": "1m", "90m": "1h30m", "0s": "0s", "500ms": "500ms", "10s": "10s"} {
		d, err := time.ParseDuration(in)
		if got := short(d); err != nil || got != want {
			t.Errorf("%s: %q, %v", in, got, err)
		}
	}
}

// Two lock servers of a node compare where their locks are: by the database and the hosts, whatever the user, the password and the encryption are.
func TestPlace(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		raw, store, hosts string
	}{
		{"memory://", "memory", "[]"},
		{"postgres://u:secret@a:5433,b/locks?sslmode=require", "postgres locks", "[a:5433 b:5432]"},
		{"postgresql://other@a:5433,b:5432/locks?sslmode=prefer", "postgres locks", "[a:5433 b:5432]"},
		{"postgres://u:secret@a", "postgres u", "[a:5432]"}, // the default database
		{"postgres:///locks?host=/run/pg&user=u", "postgres locks", "[/run/pg:5432]"},
		{"mysql://u:secret@a,b:3307/locks?tls=true", "mysql locks", "[a:3306 b:3307]"},
		{"mysql://other:secret@a,b:3307/others", "mysql others", "[a:3306 b:3307]"},
		{"etcd://a:1,b/deep/locks/", "etcd /deep/locks/", "[a:1 b:2379]"},
		{"etcds://u:secret@a:1,b/deep/locks", "etcd /deep/locks/", "[a:1 b:2379]"},
		{"etcd://a", "etcd /locksidecar/", "[a:2379]"},
		{"redis://:secret@a", "redis 0", "[a:6379]"},
		{"rediss://u:secret@a/3", "redis 3", "[a:6379]"},
		{"redis+sentinel://:secret@a,b:1/main/2", "redis main/2", "[a:26379 b:1]"},
		{"redis+sentinel://a,b:1/other/2", "redis other/2", "[a:26379 b:1]"},
		{"redis+cluster://u:secret@a,b:1", "redis 0", "[a:6379 b:1]"},
	} {
		cfg, _, err := Load(FromMap(map[string]string{"LOCKSIDECAR_STORE_URL": c.raw}))
		if err != nil {
			t.Fatal(err)
		}
		if store, hosts := cfg.Store.Place(); store != c.store || fmt.Sprint(hosts) != c.hosts {
			t.Errorf("%s: %q at %s, want %q at %s", c.raw, store, hosts, c.store, c.hosts)
		}
	}
}
