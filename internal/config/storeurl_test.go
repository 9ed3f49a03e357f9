package config

import (
	"log/slog"
	"strings"
	"testing"
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

func TestRefusedURLsAreRedacted(t *testing.T) {
	for _, url := range []string{
		"postgres://u:s3cret@h:port/d",
		"postgres://u:s3cret@h/d?sslmode=odd",
		"postgres://h/d?password=s3cret&sslmode=odd",
		"postgres://u:s3%zzcret@h/d",
		"mysql://u:s3cret@h/d",
		"s3cret",
	} {
		var c check
		c.storeURL("STORE_URL", url)
		if len(c.errs) != 1 {
			t.Errorf("%q: %v", url, c.errs)
			continue
		}
		if text := c.errs[0].Error(); strings.Contains(text, "s3") || !strings.Contains(text, "LOCKSIDECAR_STORE_URL") {
			t.Errorf("%q: %s", url, text)
		}
	}
}

func TestExplainsWhatIsNoSecret(t *testing.T) {
	var c check
	c.storeURL("STORE_URL", "postgres://h:99999/d")
	if len(c.errs) != 1 || !strings.Contains(c.errs[0].Error(), "port") {
		t.Errorf("got %v", c.errs)
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

func TestShort(t *testing.T) {
	for in, want := range map[string]string{"24h": "24h", "1m": "1m", "90m": "1h30m", "0s": "0s", "500ms": "500ms", "10s": "10s"} {
		var c check
		if got := short(c.duration("X", in, 0, maxTTL)); got != want {
			t.Errorf("%s: %q", in, got)
		}
	}
}
